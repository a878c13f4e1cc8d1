"""The web site that the demo crawls: the standard library's pydoc pages, on several hosts of this machine.

It counts its requests itself, so what the demo reports of politeness is what the *server* saw.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import pkgutil
import pydoc
import re
import select
import socket
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

NOT_SERVED = {"antigravity", "idlelib", "lib2to3", "test", "tests", "this", "tkinter", "turtle", "turtledemo"}
"""Modules whose import does something (opens a browser, prints), or asks for a display; and tests."""

HELD_AT_MOST = 30.0
"""Most seconds for which a request is held open until a kill cuts it short."""


class ModulePages(pydoc.HTMLDoc):
    """Pages of modules, on which a class is a link: the classes have pages of their own."""

    def docclass(self, object: type, name: str | None = None, mod: str | None = None, *_: Any) -> str:  # type: ignore[override]
        return f"<p>{self.classlink(object, mod or '')}: {self.escape(pydoc.splitdoc(pydoc.getdoc(object))[0])}</p>"


class Library:
    """What is served: modules and classes of the standard library, rendered by pydoc when asked for."""

    def __init__(self, pages: int) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.classes: dict[str, tuple[type, str]] = {}
        for name, module in _standard_library():
            if len(self) >= pages:
                break
            self.modules[name] = module
            public = getattr(module, "__all__", None)
            for key, value in inspect.getmembers(module, inspect.isclass):
                is_own = (value.__module__, value.__name__) == (name, key) and pydoc.visiblename(
                    key, public, module
                )
                if is_own and len(self) < pages:
                    self.classes[f"{name}.{key}"] = value, name
        self._of_modules, self._of_classes = ModulePages(), pydoc.HTMLDoc()

    def __len__(self) -> int:
        return len(self.modules) + len(self.classes)

    def __contains__(self, name: object) -> bool:
        return name in self.modules or name in self.classes

    def front_page(self) -> str:
        html = self._of_modules
        names = html.multicolumn(sorted(self.modules), lambda name: f'<a href="{name}.html">{name}</a>')
        return html.page("Index of Modules", html.bigsection("Index of Modules", "index", names))

    def page(self, name: str) -> str:
        if name in self.modules:
            return self._of_modules.page(name, self._of_modules.docmodule(self.modules[name]))
        value, module = self.classes[name]
        return self._of_classes.page(name, self._of_classes.docclass(value, value.__name__, module))


def _standard_library() -> Iterator[tuple[str, ModuleType]]:
    """Import its modules and yield them, top-level ones first."""
    names = [name for name in sorted(sys.stdlib_module_names) if name not in NOT_SERVED]
    while names:
        packages: list[str] = []
        for name in names:
            if name.startswith("_") or "._" in name:
                continue
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
                try:
                    module = importlib.import_module(name)
                except (Exception, SystemExit):  # not for this platform
                    continue
            yield name, module
            for _, inner, _ in pkgutil.iter_modules(getattr(module, "__path__", ())):
                if inner not in NOT_SERVED:
                    packages.append(f"{name}.{inner}")
        names = packages


@dataclass(frozen=True)
class Report:
    """What the site has seen so far."""

    requests: int
    fetched: int
    """Pages that were answered in full."""
    again: int
    """Of these, pages that were asked for before, by a client that was gone before it had the answer."""
    at_once: dict[str, int]
    """By host, the most requests that were in flight at once."""
    busy: int
    """The most hosts that had a request in flight at once."""
    held_for: int | None
    """The process whose request is held open, to be killed in the middle of it."""


@dataclass(eq=False)
class Request:
    """One request in flight."""

    url: str
    client: socket.socket
    process: int | None


class Site:
    """Where each page is served, which links it has, and who asked for what.

    It serves on 127.0.0.1, 127.0.0.2 and so on, as long as the ``with`` block lasts.
    """

    def __init__(self, library: Library, hosts: int) -> None:
        self._library = library
        self._servers = [Host((f"127.0.0.{number + 1}", 0), self) for number in range(hosts)]
        self._hosts = [server.name for server in self._servers]
        self.seeds = [f"http://{host}/" for host in self._hosts]
        """The front page of each host."""
        self._pages = {self._address(name): name for name in (*library.modules, *library.classes)}
        self._links: dict[str, set[str]] = {}
        self._rendered: dict[str, bytes] = {}
        self._rendering = threading.Lock()
        """Python 3.11 may raise SystemError if two threads parse at once, as pydoc does for comments."""
        self._lock = threading.Lock()
        self._in_flight: dict[str, list[Request]] = {host: [] for host in self._hosts}
        self._at_once = dict.fromkeys(self._hosts, 0)
        self._busy = self._requests = 0
        self._answered: set[str] = set()
        self._unanswered: set[str] = set()
        self._again: set[str] = set()
        self._hold = False
        self._held_for: int | None = None

    def __enter__(self) -> Site:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def __len__(self) -> int:
        return len(self._pages) + len(self._hosts)

    # Pages

    def _address(self, name: str) -> str:
        return f"http://{self._hosts[zlib.crc32(name.encode()) % len(self._hosts)]}/{name}.html"

    def page(self, url: str) -> bytes | None:
        """Return what is served at an address, with its links set to where those pages are."""
        with self._rendering:
            if url not in self._rendered and (url in self._pages or url.endswith("/")):
                self._render(url)
            return self._rendered.get(url)

    def _render(self, url: str) -> None:
        front = url if url.endswith("/") else f"{url.rpartition('/')[0]}/"
        html = self._library.front_page() if url == front else self._library.page(self._pages[url])
        links: set[str] = set()
        html = re.sub(r'href="([^"]*)"', lambda found: self._link(found[1], front, links), html)
        self._links[url], self._rendered[url] = links, html.encode(errors="backslashreplace")

    def _link(self, href: str, front: str, links: set[str]) -> str:
        local = re.fullmatch(r"([\w.]+)\.html(?:#(\w+))?", href)
        if href == ".":
            address = front
        elif local is None:
            return f'href="{href}"'
        elif f"{local[1]}.{local[2]}" in self._library.classes:
            address = self._address(f"{local[1]}.{local[2]}")
        elif local[1] in self._library:
            address = self._address(local[1])
        else:
            return 'href="#"'  # a module that is not served here
        links.add(address)
        return f'href="{address}"'

    def reachable(self) -> set[str]:
        """Walk the site's own links, without any crawler."""
        found: set[str] = set()
        ahead = {*self.seeds}
        while ahead:
            url = ahead.pop()
            found.add(url)
            self.page(url)
            ahead |= self._links[url] - found
        return found

    # Counting

    def begin(self, host: str, request: Request) -> None:
        """Count a request in.

        First, requests of clients that are gone are counted out. A killed client's request ends with the
        client, but another client may ask again before the thread that answers the first one notices.
        """
        with self._lock:
            for other in self._in_flight[host][:]:
                if _is_gone(other.client):
                    self._end(host, other, answered=False)
            self._in_flight[host].append(request)
            self._requests += 1
            self._at_once[host] = max(self._at_once[host], len(self._in_flight[host]))
            self._busy = max(self._busy, sum(map(bool, self._in_flight.values())))

    def end(self, host: str, request: Request, *, answered: bool) -> None:
        """Count a request out, unless it is already."""
        with self._lock:
            if request in self._in_flight[host]:
                self._end(host, request, answered=answered)

    def _end(self, host: str, request: Request, *, answered: bool) -> None:
        self._in_flight[host].remove(request)
        if not answered:
            self._unanswered.add(request.url)
            return
        self._answered.add(request.url)
        if request.url in self._unanswered:
            self._again.add(request.url)

    def hold_next(self) -> None:
        """Hold the next request open until its client is gone."""
        with self._lock:
            self._hold = True

    def hold(self, request: Request) -> None:
        """If this one is to be held, wait for its client to go, then raise ConnectionAbortedError."""
        with self._lock:
            if not self._hold or request.process is None:
                return
            self._hold = False
            self._held_for = request.process
        if _is_gone(request.client, within=HELD_AT_MOST):
            raise ConnectionAbortedError("the client went away")

    def report(self) -> Report:
        with self._lock:
            return Report(
                requests=self._requests,
                fetched=len(self._answered),
                again=len(self._again),
                at_once=dict(self._at_once),
                busy=self._busy,
                held_for=self._held_for,
            )

    def missed(self, pages: set[str]) -> set[str]:
        """Those of the pages that were never answered in full."""
        return pages - self._answered


def _is_gone(client: socket.socket, within: float = 0.0) -> bool:
    """Whether a client closes its end within so many seconds, or has. Ours send nothing after a request."""
    try:
        return bool(select.select([client], [], [], within)[0]) and not client.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


class Host(ThreadingHTTPServer):
    """One host of the site."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        super().__init__(address, Handler)
        self.site = site
        self.name = f"{self.server_address[0]!s}:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request.

    It speaks HTTP/1.0: an answer ends when its connection does, which is after the request was counted out.
    So a client cannot know that it has the whole page while its request still counts as in flight.
    """

    server: Host
    timeout = 60

    def do_GET(self) -> None:
        site, host = self.server.site, self.server.name
        agent = re.search(r"process (\d+)", self.headers.get("User-Agent", ""))
        request = Request(f"http://{host}{self.path}", self.connection, int(agent[1]) if agent else None)
        site.begin(host, request)
        answered = False
        try:
            site.hold(request)
            body = site.page(request.url)
            if body is None:
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(body)
                answered = True
        except OSError:
            pass  # the client is gone
        finally:
            site.end(host, request, answered=answered)

    def log_message(self, format: str, *args: Any) -> None:
        """The site keeps counts, not a log."""
