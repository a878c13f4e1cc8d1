"""A relay between clients and a server on the loopback, which loses what a test wants it to lose."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from faults.harness import eventually


class Proxy:
    """Listens on ``port`` for clients of the server at that Unix socket; ``lead_to`` names another server.

    ``cut_after``: bytes of the next request whose answer is lost, and the connection with it. ``spoil_after``: bytes of
    the next one whose answer becomes unreadable. ``is_silent``: answers are lost, and nobody is told. ``is_deaf``: new
    clients are not heard, and not told either. ``hold_back``: bytes of the next request that gets stuck on its way,
    while its sender loses the connection; ``deliver`` lets it arrive.
    """

    def __init__(self, server: Path, tls: ssl.SSLContext | None = None) -> None:
        self.cut_after: bytes | None = None
        self.spoil_after: bytes | None = None
        self.hold_back: bytes | None = None
        self.is_silent = self.is_deaf = False
        self.lost = 0
        """Reads of the server's answers that were lost because of ``is_silent``."""
        self.turns: list[int] = []
        """How often the client sent something after an answer, on each connection in the order of their making."""
        self._held: tuple[socket.socket, bytes] | None = None
        self._server = server
        self._turn = object()
        """Ends the connections that were made before it was replaced."""
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        """Stop listening and relaying."""
        self._is_over = True
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def lead_to(self, server: Path, *, is_cut: bool) -> None:
        """Lead new clients to another server, as a load balancer does; ``is_cut``: lose the old ones' connections."""
        self._server = server
        if is_cut:
            self._turn = object()

    def drop(self) -> None:
        """Wait until a request is held back, and never let it arrive."""
        eventually(lambda: self._held)
        assert self._held is not None
        self._held[0].close()

    def deliver(self) -> None:
        """Let the request that was held back arrive, and wait for the answer, which nobody gets."""
        assert self._held is not None, "nothing was held back"
        server, data = self._held
        with server:
            server.sendall(data)
            server.recv(1 << 20)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over:
            if select.select([self._listener], [], [], 0.05)[0] and not self.is_deaf:
                client, _ = self._listener.accept()
                self._start(self._relay, client)

    def _relay(self, client: socket.socket) -> None:
        turn = self._turn
        with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client:
                server.connect(str(self._server))
                self._pass_on(client, server, turn)

    def _pass_on(self, client: socket.socket, server: socket.socket, turn: object) -> None:
        is_cut = is_spoiled = False
        is_answered, number = True, len(self.turns)
        self.turns.append(0)
        while not self._is_over and turn is self._turn:
            for ready in select.select([client, server], [], [], 0.05)[0]:
                data = ready.recv(1 << 20)
                while isinstance(ready, ssl.SSLSocket) and ready.pending():
                    data += ready.recv(1 << 20)
                if not data or (ready is server and is_cut):
                    return
                self.turns[number] += ready is client and is_answered
                is_answered = ready is server
                if ready is client:
                    if self.hold_back is not None and self.hold_back in data:
                        self.hold_back, self._held = None, (server.dup(), data)
                        return
                    if self.cut_after is not None and self.cut_after in data:
                        self.cut_after, is_cut = None, True
                    if self.spoil_after is not None and self.spoil_after in data:
                        self.spoil_after, is_spoiled = None, True
                    try:
                        server.sendall(data)
                    except OSError:  # it hung up in the middle of a request, and may have said why
                        client.sendall(server.recv(1 << 20))
                        return
                elif self.is_silent:
                    self.lost += 1
                else:
                    client.sendall(b"?" + data if is_spoiled else data)
