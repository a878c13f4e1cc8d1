"""A polite web crawler: run as many as you like at once, and still no host ever gets two requests at a time.

tubes create pages utube --url sqlite:///crawl.db
python crawler.py sqlite:///crawl.db seen.db https://example.org/ https://example.com/

All of them share the queue crawl.db, and seen.db, where they keep what was put already. They stay on the hosts of
the seeds and end when nothing is left. Kill one, and another fetches its page again: nothing is lost.
"""

import os
import sqlite3
import sys
from html.parser import HTMLParser
from http.client import HTTPException
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

import tubes


class Links(HTMLParser):
    found: set[str]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.update(value for name, value in attrs if name == "href" and value)


def links_of(url: str) -> set[str]:
    """Fetch a page and return what it links to."""
    parser, me = Links(), {"User-Agent": f"tubes-crawler (process {os.getpid()})"}
    parser.found = set()
    with urlopen(Request(url, headers=me), timeout=30) as page:
        parser.feed(page.read().decode(errors="replace"))
    return {urldefrag(urljoin(url, link)).url for link in parser.found}


def put_unseen(pages: tubes.Tube, seen: sqlite3.Connection, urls: set[str]) -> None:
    """Put those pages that no process has put yet, each into the sub-queue of its host."""
    with seen:  # committed after the puts: a kill in between puts some pages twice, and never loses one
        seen.execute("BEGIN IMMEDIATE")
        for url in urls:
            if seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (url,)).rowcount:
                grouped = pages.features.grouped  # a fifo is not: put the pages there, and the hosts suffer
                pages.put(url, utube=urlsplit(url).netloc) if grouped else pages.put(url)


def crawl(pages: tubes.Tube, seen: sqlite3.Connection, seeds: set[str]) -> None:
    hosts = {urlsplit(seed).netloc for seed in seeds}
    put_unseen(pages, seen, seeds)
    while True:
        task = pages.take(timeout=0.5)
        if task is not None:
            try:
                found = links_of(task.data)
            except (OSError, HTTPException):
                pages.bury(task)  # `tubes ls pages` shows it, `tubes kick pages` has it tried again
                continue
            put_unseen(pages, seen, {url for url in found if urlsplit(url).netloc in hosts})
            pages.ack(task)  # comes last: whatever a kill cuts short, another process does again
        elif (count := pages.statistics()["tasks"])["total"] == count["buried"]:
            break  # else others are at work still, and may find more


if __name__ == "__main__":
    queue_url, seen_file, *seeds = sys.argv[1:]
    with tubes.connect(queue_url, durability="normal") as queue:
        seen = sqlite3.connect(seen_file, timeout=30, isolation_level=None)
        seen.execute("CREATE TABLE IF NOT EXISTS seen (url TEXT PRIMARY KEY) WITHOUT ROWID")
        crawl(queue.tube.pages, seen, set(seeds))
