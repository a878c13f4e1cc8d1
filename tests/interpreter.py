"""Python processes for the tests, forked from one that has imported what they all need.

A new interpreter takes longer to import SQLAlchemy than most of these processes then run. The one that they
are forked from has one thread, and nothing open: no file, no queue, no connection. Tests of how a program is
installed, found or started use a new interpreter, with ``subprocess``.

``python interpreter.py SOCKET`` is the process that is forked.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

PIPE = subprocess.PIPE

NEEDED = ("alembic.command", "asyncio", "tubes.aio", "tubes.cli")

NUMBER = struct.Struct("i")
"""The format in which a process's id, and later its status, is sent."""


# The tests' side


class Process:
    """A process that runs ``python *arguments``; to be used like a ``subprocess.Popen``.

    The arguments begin with ``-c`` and a program, or with a file.
    """

    stdin: IO[Any] | None
    stdout: IO[Any] | None
    stderr: IO[Any] | None

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        text: bool = False,
    ) -> None:
        ours: list[IO[Any] | None] = []
        theirs: list[int] = []
        kept: list[int] = []
        for number, given in enumerate((stdin, stdout, stderr)):
            if given == PIPE:
                read, write = os.pipe()
                their_end, our_end = (read, write) if number == 0 else (write, read)
                mode = ("w" if number == 0 else "r") + ("" if text else "b")
                ours.append(open(our_end, mode, encoding="utf-8" if text else None))
                kept.append(their_end)
                theirs.append(their_end)
            else:
                ours.append(None)
                theirs.append(number if given is None else given)
        self.stdin, self.stdout, self.stderr = ours
        self.args = arguments
        self.returncode: int | None = None
        self._status, status = os.pipe()
        kept.append(status)
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
        }
        _server().request(request, [status, *theirs])
        for their_end in kept:
            os.close(their_end)
        self.pid = self._hear()

    def poll(self) -> int | None:
        """How it ended: a status, or minus the number of a signal; ``None`` while it lives."""
        return self._await(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired if it does not come in time."""
        returncode = self._await(timeout)
        if returncode is None:
            raise subprocess.TimeoutExpired(str(self.args), timeout or 0)
        return returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write the input, read both outputs to their ends, and wait."""
        outputs: dict[int, Any] = {}

        def read(number: int, file: IO[Any]) -> None:
            outputs[number] = file.read()

        files = [(number, file) for number, file in enumerate((self.stdout, self.stderr)) if file is not None]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in files]
        for reader in readers:
            reader.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            try:
                self.stdin.write(input or ("" if "b" not in self.stdin.mode else b""))
                self.stdin.close()
            except BrokenPipeError:
                pass
        for reader in readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        for _, file in files:
            file.close()
        return outputs.get(0), outputs.get(1)

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if poller.poll(None if timeout is None else timeout * 1000):
                self.returncode = self._hear()
                os.close(self._status)
        return self.returncode

    def _hear(self) -> int:
        told = os.read(self._status, NUMBER.size)
        assert told, "the process that others are forked from has ended"
        number: int = NUMBER.unpack(told)[0]
        return number


def run(
    arguments: Sequence[object], *, input: Any = None, timeout: float = 60, text: bool = False, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """Run such a process to its end, as ``subprocess.run`` does with ``capture_output``."""
    process = Process(arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=text, **more)
    try:
        stdout, stderr = process.communicate(input, timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(list(map(str, arguments)), process.wait(), stdout, stderr)


def drawn_on(terminal: int) -> str:
    """All that is written to the other end of a terminal until nobody has that end open."""
    drawn = b""
    with suppress(OSError):  # how a terminal reports that
        while some := os.read(terminal, 4096):
            drawn += some
    os.close(terminal)
    return drawn.decode()


class _Server:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._socket = ours
        self._lock = threading.Lock()
        atexit.register(self.close)

    def request(self, request: dict[str, Any], files: list[int]) -> None:
        body = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [NUMBER.pack(len(body))], files)
            self._socket.sendall(body)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        if not _servers:
            _servers.append(_Server())
        return _servers[0]


# The side of the process that is forked


def get_ready() -> None:
    """Import, and do what each process does once: opening the first queue compiles statements."""
    for module in NEEDED:
        importlib.import_module(module)
    for store in entry_points(group="tubes.stores"):
        store.load()
    importlib.import_module("tubes").connect("sqlite://", sweep=False).close()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1


def serve(requests: socket.socket) -> list[str]:
    """Fork a process for each request, and tell how each ends. Returns in each of them, with its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    children: dict[int, int] = {}
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        ready = [file for file, _ in poller.poll()]
        if woken in ready:
            os.read(woken, 4096)
            tell_ends(children)
        if requests.fileno() in ready:
            head, received, _, _ = socket.recv_fds(requests, NUMBER.size, 4)
            if not head:
                os._exit(0)
            request = json.loads(requests.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                requests.detach()  # what is closed below; else it would be closed again, under a warning
                return begin(request, received[1:])
            children[pid] = received[0]
            os.write(received[0], NUMBER.pack(pid))
            for file in received[1:]:
                os.close(file)


def tell_ends(children: dict[int, int]) -> None:
    for pid, status in list(children.items()):
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            del children[pid]
            try:
                os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(how)))
            except BrokenPipeError:  # nobody asks
                pass
            os.close(status)


def begin(request: dict[str, Any], files: list[int]) -> list[str]:
    """Become a process of its own, with the files, environment, folder and signals of a new interpreter."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    arguments: list[str] = request["arguments"]
    return arguments


def become(arguments: list[str]) -> None:
    """Run ``python *arguments``."""
    if arguments[0] == "-c":
        name, source, sys.path[0] = "<string>", arguments[1], ""
        sys.argv = ["-c", *arguments[2:]]
    else:
        name = arguments[0]
        source, sys.path[0] = Path(name).read_text(encoding="utf-8"), str(Path(name).parent)
        sys.argv = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = name
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    get_ready()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
