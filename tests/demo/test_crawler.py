"""The crawler on pages that are not pydoc's: odd links, pages that nobody can read, and redirects."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import tubes
from examples.crawler import crawl

ODD_LINKS = ["/straße", "/a b", "http://[no-url", "mailto:ann@example.org", "/moved", "/gone", "/odd"]


class Host(ThreadingHTTPServer):
    """A web site that notes what it is asked for."""

    daemon_threads = True

    def __init__(self, asked: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.asked = asked
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.moved_to = ""
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Pages(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        self.server.asked.append(self.server.url + self.path)
        odd = [*ODD_LINKS, "/short", self.server.url.replace("http", "file") + "/etc/passwd"]
        links = "".join(f'<a href="{link}">' for link in odd) if self.path == "/" else ""
        body = ("<![no such section]>" if self.path == "/odd" else links).encode()
        self.send_response({"/moved": 302, "/gone": 404}.get(self.path, 200))
        if self.path == "/moved":
            self.send_header("Location", self.server.moved_to)
        self.send_header("Content-Length", str(len(body) + (self.path == "/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to say."""


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def hosts(asked: list[str]) -> Iterator[tuple[Host, Host]]:
    with Host(asked) as first, Host(asked) as second:
        first.moved_to = f"{second.url}/here"
        yield first, second


def test_whatever_lies_in_a_page_the_crawl_goes_on_and_each_request_is_a_task(
    hosts: tuple[Host, Host], asked: list[str]
) -> None:
    """A redirect followed at once would reach another host that may be in another worker's hands."""
    first, second = hosts
    taken: list[str] = []
    with (
        tubes.connect("sqlite://") as queue,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as seen,
    ):
        seen.execute("CREATE TABLE seen (url TEXT PRIMARY KEY)")
        pages = queue.create_tube("pages", "utube")
        pages.on_task_change(lambda task, event: taken.append(task.data) if event == "take" else None)
        crawl(pages, seen, {f"{first.url}/", f"{second.url}/nothing"})
        buried = {task.data for task in pages.tasks("!")}
    unread = {f"{first.url}/gone", f"{first.url}/short"}
    assert buried - {f"{first.url}/odd"} == unread  # newer Pythons' parsers read that one
    paths = ("/", "/stra%C3%9Fe", "/a%20b", "/moved", "/gone", "/odd", "/short")
    assert sorted(asked) == sorted(
        [*(first.url + path for path in paths), f"{second.url}/nothing", f"{second.url}/here"]
    )
    assert asked == taken
