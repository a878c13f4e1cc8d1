"""A polite web crawler: run as many as you like at once, and still no host ever gets two requests at a time.

tubes create pages utube --url sqlite:///crawl.db
python crawler.py sqlite:///crawl.db seen.db https://example.org/ https://example.com/

They share the queue crawl.db, and seen.db, which records the pages already put. They stay on the hosts of the
seeds and end when nothing is left. Kill one, and another fetches its page again: nothing is lost.
"""

import os
import sqlite3
import string
import sys
from contextlib import suppress
from html.parser import HTMLParser
from urllib.error import HTTPError
from urllib.parse import quote, urldefrag, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import tubes


class Links(HTMLParser):
    found: set[str]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.update(value for name, value in attrs if name == "href" and value)


class NoRedirects(HTTPRedirectHandler):
    """Treats a redirect as a link: followed at once, it could reach a host that another process works on."""

    def redirect_request(self, *_: object) -> None:
        return None


web = build_opener(NoRedirects)


def links_of(url: str) -> set[str]:
    """Fetch a page and return what it links to."""
    parser, me = Links(), {"User-Agent": f"tubes-crawler (process {os.getpid()})"}
    parser.found, links = set(), set()
    try:
        with web.open(Request(url, headers=me), timeout=30) as page:
            parser.feed(page.read().decode(errors="replace"))
    except HTTPError as error:
        if error.headers["Location"] is None:
            raise
        parser.found.add(error.headers["Location"])
    for link in parser.found:
        with suppress(ValueError):  # not a URL
            links.add(quote(urldefrag(urljoin(url, link)).url, safe=string.punctuation))
    return links


def is_page(url: str) -> bool:
    """Whether it is on the web: urllib would open file://localhost/ too, if any page linked to it."""
    return urlsplit(url).scheme in ("http", "https")


def put_unseen(pages: tubes.Tube, seen: sqlite3.Connection, urls: set[str]) -> None:
    """Put those pages that no process has put yet, each into the sub-queue of its host."""
    with seen:  # committed after the puts: a kill in between puts some pages twice, but loses none
        seen.execute("BEGIN IMMEDIATE")
        for url in urls:
            if seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (url,)).rowcount:
                grouped = pages.features.grouped  # a fifo is not, so nothing spares the hosts
                pages.put(url, utube=urlsplit(url).netloc) if grouped else pages.put(url)


def crawl(pages: tubes.Tube, seen: sqlite3.Connection, seeds: set[str]) -> None:
    hosts = {urlsplit(seed).netloc for seed in seeds}
    put_unseen(pages, seen, seeds)
    while True:
        task = pages.take(timeout=0.5)
        if task is not None:
            try:
                found = links_of(task.data)
            except Exception:  # no page may end the crawl
                pages.bury(task)  # `tubes ls pages` shows it, `tubes kick pages` retries it
                continue
            put_unseen(pages, seen, {url for url in found if is_page(url) and urlsplit(url).netloc in hosts})
            pages.ack(task)  # comes last: whatever a kill cuts short, another process does again
        elif (count := pages.statistics()["tasks"])["total"] == count["buried"]:
            break  # otherwise others are still at work, and may find more


if __name__ == "__main__":
    queue_url, seen_file, *seeds = sys.argv[1:]
    with tubes.connect(queue_url, durability="normal") as queue:
        seen = sqlite3.connect(seen_file, timeout=30, isolation_level=None)
        seen.execute("CREATE TABLE IF NOT EXISTS seen (url TEXT PRIMARY KEY) WITHOUT ROWID")
        crawl(queue.tube.pages, seen, set(seeds))
