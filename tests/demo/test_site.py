"""The demo's web site counts for itself what it is asked for."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier, BrokenBarrierError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from faults.harness import eventually

from tubes.demo_site import Library, Site


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(40)


@pytest.fixture
def site(library: Library) -> Iterator[Site]:
    with Site(library, 2) as site:
        yield site


@contextmanager
def asking(url: str, process: int | None = None) -> Iterator[socket.socket]:
    """A request that is sent, and whose answer is not read."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=20) as connection:
        agent = f"User-Agent: test (process {process})\r\n" if process else ""
        connection.sendall(f"GET {parts.path} HTTP/1.0\r\n{agent}\r\n".encode())
        yield connection


def read(url: str) -> str:
    with urlopen(Request(url), timeout=20) as page:
        return str(page.read().decode())


def test_every_page_is_pydocs_and_leads_to_pages_that_are_there(site: Site) -> None:
    reachable = site.reachable()
    assert len(reachable) == 42
    for url in sorted(reachable):
        page = read(url)
        assert "<title>Python: " in page
        links = {link.partition("#")[0] for link in re.findall(r'href="(http://127[^"]*)"', page)}
        assert links <= reachable
    report = site.report()
    assert (report.fetched, report.requests, len(site), site.missed(reachable)) == (42, 42, 42, set())
    assert set(report.at_once.values()) == {1}


def test_pages_that_nobody_fetched_are_missed(site: Site) -> None:
    read(site.seeds[0])
    assert len(site.missed(site.reachable())) == 41


def test_two_requests_at_once_are_counted_as_two_on_their_host_alone(site: Site) -> None:
    first, second = site.seeds
    site.hold_next()
    with asking(first, process=4711):
        eventually(lambda: site.report().held_for == 4711)
        read(first)
        read(second)
    report = site.report()
    assert list(report.at_once.values()) == [2, 1]
    assert report.busy == 2


def test_the_request_of_a_client_that_is_gone_is_over(site: Site) -> None:
    """The next request for the same page is alone, however soon it comes, and counts as the page's second."""
    first, _ = site.seeds
    site.hold_next()
    with asking(first, process=4711):
        eventually(lambda: site.report().held_for == 4711)
    read(first)
    eventually(lambda: site.report().fetched == 1)
    report = site.report()
    assert list(report.at_once.values()) == [1, 0]
    assert (report.requests, report.again) == (2, 1)


def test_a_page_that_is_not_there_is_not_fetched(site: Site) -> None:
    first, _ = site.seeds
    with asking(f"{first}nothing.html") as connection:
        assert b" 404 " in connection.recv(1000)
    assert site.report().fetched == 0


def test_pages_are_rendered_one_at_a_time() -> None:
    """Python 3.11 fails now and then if two threads parse at once, and pydoc parses."""
    meeting = Barrier(2)
    met: list[str] = []

    class Watched(Library):
        def page(self, name: str) -> str:
            with suppress(BrokenBarrierError):
                meeting.wait(0.5)
                met.append(name)
            return super().page(name)

    library = Watched(20)
    first, second, *_ = library.modules
    with Site(library, 1) as site, ThreadPoolExecutor(2) as readers:
        [*readers.map(read, [f"{site.seeds[0]}{name}.html" for name in (first, second)])]
    assert not met


@pytest.mark.slow
def test_an_answer_ends_after_it_was_counted_out(site: Site) -> None:
    """Whoever has the whole page may ask for the next at once: their requests never overlap."""
    first, _ = site.seeds
    for _ in range(300):
        read(first)
    assert list(site.report().at_once.values()) == [1, 0]
