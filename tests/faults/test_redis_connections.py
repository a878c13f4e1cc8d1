"""Redis: answers that are lost, connections that die without a word, and the ways to get none."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import interpreter
import pytest
import redis
from faults.harness import ended, eventually, no_new_threads, quiet, waiting
from faults.proxy import Proxy
from redis_servers import RedisServer, a_sentinel, on_a_port
from slow import slow_but

import tubes
from tubes.testing.suite import take

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")

SECRET = "s3cret/word"


@pytest.fixture
def server(own_redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A server whose settings a test may change."""
    return own_redis_server()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """A proxy in front of that server."""
    made = Proxy(server.folder / "redis.sock")
    yield made
    made.close()


@pytest.fixture
def tube(server: RedisServer) -> Iterator[tubes.Tube]:
    """A tube there, seen through sound connections."""
    with tubes.connect(f"{server.url}") as queue:
        tube = queue.create_tube("jobs", "limfifottl", capacity=5)
        id = tube.put("so that the server knows the scripts").id
        tube.peek(id)
        task = take(tube)
        tube.ack(task)
        yield tube


@pytest.fixture
def unlucky(tube: tubes.Tube, proxy: Proxy) -> Iterator[tubes.Tube]:
    """The same tube, seen through the proxy."""
    url = f"redis://127.0.0.1:{proxy.port}?dead_after=1"
    with tubes.connect(url, sweep=False) as queue:
        queue.tube.jobs.take(timeout=0)  # its session is let in
        yield queue.tube.jobs
        proxy.is_silent = False


class SlowWay:
    """A socket whose way carries a mebibyte a second. Like any, it gives a whole ``sendall`` its timeout."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket

    def sendall(self, data: bytes) -> None:
        timeout = self._socket.gettimeout()
        assert timeout is not None
        if len(data) / 1_048_576 > timeout:
            raise TimeoutError("timed out")
        self._socket.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def test_what_is_large_has_the_time_that_a_slow_way_takes(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as some of it gets through: otherwise no try would ever succeed."""
    kind = redis.UnixDomainSocketConnection
    connect: Callable[[Any], socket.socket] = kind._connect
    monkeypatch.setattr(kind, "_connect", lambda connection: SlowWay(connect(connection)))
    with tubes.connect(server.url, sweep=False, busy_timeout=0.5) as queue:
        assert queue.create_tube("jobs", "fifo").put("x" * 4_000_000).id == 1


def test_a_call_waits_for_the_one_before_it_no_longer_than_for_the_server(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With callbacks, which hear of both in order."""
    with tubes.connect(server.url, sweep=False) as queue, ThreadPoolExecutor(1) as pool:
        tube = queue.create_tube("jobs", "fifo", on_task_change=lambda task, event: None)
        store: Any = queue.store
        monkeypatch.setattr(store._hub.nodes, "longest", 0.01)
        in_order: Any = tube.place
        pool.submit(in_order._in_order.acquire).result()
        with pytest.raises(tubes.StoreUnavailable, match=r"waited 0\.01 s for an earlier call"):
            tube.put("x")
        pool.submit(in_order._in_order.release).result()
        assert tube.put("y").id == 1


@pytest.mark.parametrize(("query", "expected"), [("", (1, 30)), ("&socket_keepalive=0", (0, None))])
def test_an_idle_connection_is_kept_in_use(
    proxy: Proxy, query: str, expected: tuple[int, int | None]
) -> None:
    """A router on the way may forget one that is not. redis-py sees to that only since 8; the URL has the last word."""
    with tubes.connect(f"redis://127.0.0.1:{proxy.port}?dead_after=60{query}", sweep=False) as queue:
        store: Any = queue.store
        wire = store._hub.nodes.connect(store._keys, 5.0)
        with socket.socket(fileno=os.dup(wire.fileno())) as tcp:
            is_on = tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) if is_on else None
            assert (is_on, idle) == expected
        wire.close()


def test_a_server_is_waited_for_a_moment_though_the_busy_timeout_is_0(proxy: Proxy) -> None:
    """A connection cannot be opened in no time at all."""
    with tubes.connect(f"redis://127.0.0.1:{proxy.port}", sweep=False, busy_timeout=0) as queue:
        assert queue.create_tube("jobs", "fifo").put("x").id == 1


@pytest.mark.parametrize("what", ["cut_after", "spoil_after"])
def test_a_put_whose_answer_is_lost_may_have_been_done(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy, what: str
) -> None:
    """It is not done again; the next one works."""
    setattr(proxy, what, scripts.PUT.sha.encode())
    with pytest.raises(tubes.OutcomeUnknown, match="connection died"):
        unlucky.put("maybe")
    unlucky.put("surely")
    assert [task.data for task in tube.tasks("r")] == ["maybe", "surely"]


def test_the_command_says_of_which_lines_nobody_knows_whether_they_were_put(
    server: RedisServer, tube: tubes.Tube, proxy: Proxy
) -> None:
    """A user who is told that they were not would put them again."""
    with tubes.connect(server.url, sweep=False) as queue:
        lines = queue.create_tube("lines", "fifo")
        proxy.cut_after = scripts.PUT.sha.encode()
        put = ["put", "lines", "--url", f"redis://127.0.0.1:{proxy.port}"]
        ended = interpreter.run(
            ["-c", "from tubes.cli import main; main()", *put], input=b"1\n\n2\n", timeout=30
        )
        assert b"0 put; lines 1 to 3 may or may not have been put; later lines" in ended.stderr
        assert [task.data for task in lines.tasks("r")] == [1, 2]


def test_a_take_whose_answer_is_lost_strands_nothing(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    """What it took without an answer comes back with the next take of the same process."""
    tube.put("x")
    proxy.cut_after = scripts.TAKE.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky.take(timeout=0)
    assert tube.statistics()["tasks"]["taken"] == 1
    task = unlucky.take(timeout=0)
    assert task is not None and task.attempts == 2
    unlucky.ack(task)


@pytest.mark.slow
def test_a_take_that_arrives_when_its_sender_has_looked_already_strands_nothing(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    """A network recovers, and delivers what was stuck in it."""
    proxy.hold_back = scripts.TAKE.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky.take(timeout=0)
    assert unlucky.take(timeout=0) is None
    tube.put("x")
    proxy.deliver()
    assert tube.statistics()["tasks"]["taken"] == 1
    task = unlucky.take(timeout=5)
    assert task is not None and task.attempts == 2
    time.sleep(1.5)  # real time: it is looked for again
    assert unlucky.take(timeout=0) is None, "what it has told of is not given back"
    unlucky.ack(task)


def test_a_waiting_take_whose_answer_is_lost_goes_on(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    thread, got = waiting(unlucky)
    proxy.cut_after = scripts.TAKE.sha.encode()
    tube.put("x")
    ended(thread)
    assert proxy.cut_after is None
    assert got[0] is not None and got[0].data == "x"


def test_an_ack_whose_answer_is_lost_is_done_once(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    tube.put("x")
    task = take(unlucky)
    proxy.cut_after = scripts.ACK.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky.ack(task)
    with pytest.raises(tubes.NotTaken):
        unlucky.ack(task)
    assert tube.statistics()["tasks"]["total"] == 0


def test_counts_whose_answer_is_lost_are_stored_once(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    unlucky.put("x")
    unlucky._queue.flush_counts()  # the server knows the script from then on
    before = tube.statistics()["calls"]["put"]
    unlucky.put("x")
    proxy.cut_after = scripts.ADD_CALLS.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky._queue.flush_counts()
    assert tube.statistics()["calls"]["put"] == before + 1


def test_a_tube_is_opened_though_the_answer_is_lost(tube: tubes.Tube, proxy: Proxy) -> None:
    """No outcome is unknown: a tube is made only if it is not there, so the script may run twice."""
    proxy.cut_after = b"HEXISTS"  # which asks whether it is there
    with tubes.connect(f"redis://127.0.0.1:{proxy.port}", sweep=False) as queue:
        assert proxy.cut_after is None
        proxy.cut_after = scripts.OPEN.sha.encode()
        assert queue.create_tube("new", "fifo").put("x").data == "x"
        assert proxy.cut_after is None


def test_a_drop_whose_answer_is_lost_leaves_no_name_behind(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    """A second drop says that the tube is gone, and then its name is free."""
    queue, mine = tube._queue, unlucky._queue
    queue.create_tube("other", "fifo").drop()  # so that the server knows the script
    last = tube.put("x").id
    proxy.cut_after = scripts.DROP.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky.drop()
    with pytest.raises(tubes.NoSuchTube):
        unlucky.drop()
    assert queue.tubes() == mine.tubes() == []
    assert mine.create_tube("jobs", "fifo").put("y").id > last


def test_the_name_of_a_tube_whose_drop_was_cut_short_is_free(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    """Even for a process that has not heard of the drop, and opens the tube only to put."""
    tube._queue.create_tube("other", "fifo").drop()  # so that the server knows the script
    last = tube.put("x").id
    proxy.cut_after = scripts.DROP.sha.encode()
    with pytest.raises(tubes.OutcomeUnknown):
        unlucky.drop()
    with tubes.connect(f"redis://127.0.0.1:{proxy.port}") as later:
        jobs = later.create_tube("jobs", "fifo", if_not_exists=True)
        assert jobs.put("y").id > last
        assert jobs.type == "fifo"


def test_a_look_whose_answer_is_lost_is_done_again(
    tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    id = tube.put("x").id
    proxy.cut_after = scripts.PEEK.sha.encode()
    assert unlucky.peek(id).data == "x"
    assert proxy.cut_after is None


@pytest.mark.slow
def test_who_waits_on_a_connection_that_died_without_a_word_is_served(
    server: RedisServer, tube: tubes.Tube, unlucky: tubes.Tube, proxy: Proxy
) -> None:
    """Neither a call nor the end of its wait arrives; in time the consumer waits on another connection."""

    def blocked() -> set[str]:
        return {client["id"] for client in server.command("CLIENT LIST") if client["cmd"] == "blpop"}

    thread, got = waiting(unlucky, timeout=None)
    eventually(blocked)
    lost = blocked()
    proxy.is_silent = True
    eventually(lambda: not blocked() & lost)
    tube.put("x")
    proxy.is_silent = False
    ended(thread)
    assert got and got[0] is not None and got[0].data == "x"
    thread, got = waiting(unlucky, timeout=None)
    eventually(blocked)
    tube.put("y")
    ended(thread)
    assert got and got[0] is not None and got[0].data == "y"


@pytest.mark.parametrize(
    "lost", slow_but(["by the beat"], ["by the beat", "by a look", "by the clock", "being opened"])
)
def test_who_loses_a_connection_without_a_word_is_not_taken_for_dead(
    lost: str, server: RedisServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer to a beat is waited for only until the next beat, however long other answers are."""
    far = f"redis://127.0.0.1:{proxy.port}?dead_after=3"
    with tubes.connect(f"{server.url}&dead_after=3") as other, tubes.connect(far, sweep=False) as queue:
        other.create_tube("jobs", "fifo").put("x")
        task = take(queue.tube.jobs)
        store: Any = queue.store

        def beat() -> object:
            return server.command("HGET", "{tubes}:connections", store._connection)

        def beats() -> None:
            last = beat()
            eventually(lambda: beat() != last)

        def falls_silent(name: str, *given: Any, **more: Any) -> Any:
            if name == "_learn_time" or given[1] is {"by the beat": scripts.BEAT}.get(lost, scripts.SESSIONS):
                monkeypatch.undo()
                proxy.is_silent = True
            return asked[name](*given, **more)

        if lost != "being opened":
            name = "_learn_time" if lost == "by the clock" else "_evaluate"
            asked = {name: getattr(store, name)}
            monkeypatch.setattr(store, name, partial(falls_silent, name))
            eventually(lambda: proxy.lost)
        else:
            proxy.is_silent = True
            store._hub.nodes._forget_idle(None)
            eventually(lambda: proxy.lost)  # what the server said to a new connection
        proxy.is_silent = False
        beats()
        assert queue.tube.jobs.ack(task).id == task.id


def test_a_call_that_is_under_way_when_its_queue_is_closed_leaves_no_connection_open(
    server: RedisServer,
) -> None:
    queue = tubes.connect(server.url, sweep=False)
    store: Any = queue.store
    store._hub.nodes.call(None, lambda wire: queue.close(), is_repeatable=False)
    eventually(lambda: len(server.command("CLIENT LIST")) == 1)


def test_a_server_that_was_busy_before_it_may_lose_as_many_connections(server: RedisServer) -> None:
    """Only lost connections count, not busy answers, until a server counts as one that cannot be used."""
    lost = importlib.import_module("tubes.drivers.redis.wire").Lost("it died", was_sent=False)
    busy = redis.exceptions.BusyLoadingError("it loads")
    with tubes.connect(server.url, sweep=False) as queue:
        store: Any = queue.store

        def call(*failures: Exception) -> str:
            left = [*failures]

            def use(wire: Any) -> str:
                if left:
                    raise left.pop(0)
                return "done"

            return str(store._hub.nodes.call(None, use, is_repeatable=False))

        assert call(busy, busy, busy, lost, lost) == "done"
        with pytest.raises(tubes.StoreUnavailable, match="it died"):
            call(lost, lost, lost)


# No connection


def refused(url: str, **settings: Any) -> tubes.TubeError:
    """The error of a connect that must fail; however it is shown, it shows no secret."""
    with pytest.raises(tubes.TubeError) as caught:
        tubes.connect(url, **settings)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "s3cret" not in shown, shown
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n", b"$5\r\nhello\r\n", b"*2\r\n+a\r\n+b\r\n"],
    ids=["status", "number", "nothing", "empty", "text", "two"],
)
def test_a_server_that_answers_as_no_redis_does_is_an_error_of_ours(answer: bytes) -> None:
    """It speaks the protocol, but always gives the same answer."""

    class AlwaysSo(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if line.startswith(b"*"):
                    self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AlwaysSo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            error = refused(f"redis://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
    assert isinstance(error, tubes.StoreUnavailable)
    assert "it is not Redis" in str(error)


def test_who_may_not_in_keeps_no_connection_open(server: RedisServer) -> None:
    """Even while somebody keeps the error."""
    server.command("ACL SETUSER", "none", "on", ">s3cret", "+ping", "~*")
    errors = [refused(server.url.replace("unix://", "unix://none:s3cret@")) for _ in range(3)]
    eventually(lambda: len(server.command("CLIENT LIST")) == 1)
    assert all("permissions" in str(error) for error in errors)


def test_who_may_not_in_is_told_why(server: RedisServer, caplog: Any) -> None:
    """The password is wrong or missing, or the user may not do what is needed."""
    server.command("CONFIG SET", "requirepass", "right")
    sock = f"{server.folder}/redis.sock"

    def login(user: str, password: str) -> str:
        return f"unix://{user}:{password}@{sock}"

    with caplog.at_level(logging.DEBUG):
        for url in (login("", "s3cret"), f"unix://{sock}"):
            error = refused(url)
            assert isinstance(error, tubes.StoreUnavailable) and sock in str(error)
        with redis.Redis(unix_socket_path=sock, password="right") as admin:
            admin.execute_command("ACL SETUSER", "none", "on", ">s3cret", "+ping", "~*")
            admin.execute_command("ACL SETUSER", "some", "on", ">s3cret", "~*", "+@all", "-evalsha", "-eval")
            admin.execute_command("ACL SETUSER", "tubes", "on", ">s3cret", "~{tubes*", "+@all")
            admin.execute_command("ACL SETUSER", "half", "on", ">s3cret", "~{tubes}:*", "+@all")
        for user in ("none", "some"):
            error = refused(login(user, "s3cret"))
            assert isinstance(error, tubes.StoreUnavailable) and "permissions" in str(error)
        with tubes.connect(login("half", "s3cret")) as queue:
            with pytest.raises(tubes.StoreUnavailable, match="permissions"):
                queue.create_tube("jobs", "fifo")
            assert queue.tubes() == []  # otherwise nobody could open the queue any more
        with tubes.connect(login("tubes", "s3cret")) as queue:
            tube = queue.create_tube("jobs", "utubettl")
            tube.put("x")
            task = tube.take(timeout=0)
            assert task is not None and tube.ack(task)
            assert "s3cret" not in repr(queue)
            with redis.Redis(unix_socket_path=sock, password="right") as admin:
                admin.execute_command("ACL DELUSER", "tubes")
            # The server cuts the user's connection: before a call, or in it.
            for refusals in ((tubes.StoreUnavailable, tubes.OutcomeUnknown), (tubes.StoreUnavailable,)):
                with pytest.raises(refusals) as caught:
                    tube.put("y")
                assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in caplog.text


@pytest.mark.slow
def test_threads_take_turns_where_a_server_has_no_more_connections(
    own_redis_server: Callable[..., RedisServer],
) -> None:
    """They wait for one as long as for an answer; a client that still gets none is told why."""
    server = own_redis_server(fsync="always")
    with redis.Redis(unix_socket_path=f"{server.folder}/redis.sock") as admin:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        admin.config_set("port", port)  # a Unix socket would be cut before the reason arrives
        url = f"redis://127.0.0.1:{port}"
        with tubes.connect(url, sweep=False) as queue:
            tube = queue.create_tube("jobs", "fifo")
            admin.config_set("maxclients", len(admin.client_list()))
            with ThreadPoolExecutor(8) as threads:
                assert len({*threads.map(lambda number: tube.put(number).id, range(200))}) == 200
            error = refused(url, busy_timeout=0.2, namespace="other")
            assert isinstance(error, tubes.StoreUnavailable) and "max number of clients" in str(error)


@pytest.mark.slow
def test_who_may_not_wait_at_a_bell_waits_and_is_told_so_once(server: RedisServer, caplog: Any) -> None:
    """Otherwise its user would only notice that tasks come half a second late."""
    server.command("ACL SETUSER", "deaf", "on", ">s3cret", "~{tubes*", "+@all", "-blpop")
    url = server.url.replace("unix://", "unix://deaf:s3cret@")
    with tubes.connect(url) as queue, tubes.connect(server.url) as other:
        thread, got = waiting(queue.create_tube("jobs", "fifo"))
        eventually(lambda: caplog.records)
        other.tube.jobs.put("x")
        ended(thread)
        assert queue.tube.jobs.take(timeout=0.6) is None
        assert [task and task.data for task in got] == ["x"]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "'blpop'" in record.getMessage()


def test_who_waits_where_there_are_no_bells_is_told_so(
    own_redis_server: Callable[..., RedisServer], caplog: Any
) -> None:
    """A Redis service, or a proxy in front of it, may have no commands that block."""
    server = own_redis_server(settings='rename-command BLPOP ""')
    with tubes.connect(server.url) as queue:
        tube = queue.create_tube("jobs", "fifo")
        thread, got = waiting(tube)
        eventually(lambda: caplog.records)
        tube.put("x")
        ended(thread)
        assert got[0] is not None and got[0].data == "x"
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "BLPOP" in record.getMessage()


@pytest.mark.parametrize(
    "url",
    [
        "unix:///nowhere/redis.sock",
        f"redis://someone:{SECRET.replace('/', '%2F')}@127.0.0.1:1/0",
        "redis://127.0.0.1:1",
        "rediss://:s3cret@127.0.0.1:1/3?ssl_cert_reqs=none",
    ],
)
def test_a_server_that_is_not_there_is_an_error_that_says_where(url: str) -> None:
    error = refused(url)
    assert isinstance(error, tubes.StoreUnavailable)
    assert "/nowhere/redis.sock" in str(error) or "127.0.0.1:1" in str(error)
    assert error.__cause__ and isinstance(error.__cause__.__cause__, redis.ConnectionError)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://someone:{SECRET}@127.0.0.1/0",
        "redis://:s3cret?word@127.0.0.1",
        "redis://:s3cret#word@127.0.0.1",
        "redis://worker:1234#s3cret@127.0.0.1",
        "redis://worker:1234?s3cret@127.0.0.1",
        "redis://worker:1234/s3cret@127.0.0.1/0",
        "unix://worker:1234/s3cret@/nowhere/redis.sock",
        "unix://worker:1@1234/s3cret@/nowhere/redis.sock",
        "redis://127.0.0.1:1?password=1234#s3cret",
        "redis://[s3cret]x:1",
        "redis://127.0.0.1:1?no_such_option=s3cret",
        "redis://127.0.0.1:1?socket_timeout=s3cret",
        "redis://127.0.0.1:1?maint_notifications_config=s3cret",
        "redis://mymaster/0?sentinel=host:s3cret&sentinel_password=1234",
    ],
)
def test_a_url_that_is_none_is_refused_without_a_word_of_it(url: str) -> None:
    """Neither connect nor a redis tube shows a password, or digits of it that look like a port."""
    with tubes.connect("sqlite://", sweep=False) as queue, pytest.raises(tubes.BadOption) as caught:
        queue.create_tube("jobs", "redis", url=url)
    for error in (refused(url), caught.value):
        assert isinstance(error, tubes.BadOption) and "1234" not in str(error)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://127.0.0.1:1?username=a@b", "redis://127.0.0.1:1"),
        ("unix:///nowhere/a@b/redis.sock", "unix:///nowhere/a@b/redis.sock"),
        ("redis://a%40b:s3cret@127.0.0.1:1/0", "redis://127.0.0.1:1/0"),
    ],
)
def test_an_at_may_stand_where_it_ends_nothing(url: str, place: str) -> None:
    error = refused(url)
    assert isinstance(error, tubes.StoreUnavailable) and f"Redis at {place} cannot" in str(error)


@pytest.mark.parametrize("path", ["jobs", "1x", "-1", "1/2", "O"])
def test_a_path_that_is_no_number_is_no_database(path: str) -> None:
    """For some of these redis-py would take database 0, and for another 12."""
    with tubes.connect("sqlite://", sweep=False) as queue, pytest.raises(tubes.BadOption, match="a number"):
        queue.create_tube("jobs", "redis", url=f"redis://127.0.0.1:1/{path}")
    for scheme in ("redis", "rediss"):
        with pytest.raises(tubes.BadOption, match="a number"):
            tubes.connect(f"{scheme}://127.0.0.1:1/{path}?dead_after=5")


@pytest.mark.parametrize(
    "place", ["", "/", "redis.sock", "./redis.sock", "run/redis.sock", "worker@redis.sock"]
)
def test_a_socket_without_an_absolute_path_is_refused(place: str) -> None:
    """For most of these redis-py would ask another socket, /redis.sock."""
    with tubes.connect("sqlite://", sweep=False) as queue, pytest.raises(tubes.BadOption, match="absolute"):
        queue.create_tube("jobs", "redis", url=f"unix://{place}")
    with pytest.raises(tubes.BadOption, match="absolute"):
        tubes.connect(f"unix://{place}?dead_after=5")


@pytest.mark.parametrize("path", ["", "/", "/0", "/1/"])
def test_a_path_that_is_a_number_or_none_is_a_database(path: str) -> None:
    assert isinstance(refused(f"redis://127.0.0.1:1{path}"), tubes.StoreUnavailable)


@pytest.mark.parametrize(
    "option",
    [
        "credential_provider=x",
        "command_packer=x",
        "parser_class=x",
        "encoding_errors=x",
        "socket_read_size=-1",
        f"socket_read_size={10**20}",
        "cache_config=1",
    ],
)
def test_an_option_that_no_such_text_can_be_is_refused(redis_url: str, option: str) -> None:
    joined = "&" if "?" in redis_url else "?"
    with pytest.raises(tubes.BadOption, match="bad store URL"):
        tubes.connect(f"{redis_url}{joined}{option}")


def test_a_class_of_connections_cannot_be_named_in_a_url() -> None:
    with pytest.raises(tubes.BadOption, match="bad store URL: 'connection_class'"):
        tubes.connect("redis://127.0.0.1:1?connection_class=redis.Connection")


@pytest.mark.parametrize(
    ("name", "near"), [("dead_aftr", r"; did you mean 'dead_after'\?"), ("unheard_of", "$")]
)
def test_an_option_that_there_is_not_is_refused_by_its_name(redis_url: str, name: str, near: str) -> None:
    joined = "&" if "?" in redis_url else "?"
    with pytest.raises(tubes.BadOption, match=f"bad store URL: there is no option '{name}'{near}"):
        tubes.connect(f"{redis_url}{joined}{name}=1")


@pytest.mark.parametrize("given", ["", "0", "soon", "86401"])
def test_a_time_to_be_dead_after_that_can_be_none_is_refused(redis_url: str, given: str) -> None:
    joined = "&" if "?" in redis_url else "?"
    with pytest.raises(tubes.BadOption, match="dead_after must be seconds"):
        tubes.connect(f"{redis_url}{joined}dead_after={given}")


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_host_that_none_can_be_called_is_one_that_is_not_there(host: str) -> None:
    with pytest.raises(tubes.StoreUnavailable, match="label"):
        tubes.connect(f"redis://{host}/0")


SIZE = "'socket_read_size'" if int(redis.__version__.partition(".")[0]) >= 8 else "an option"
"""Before 8, redis-py takes any size, and what refuses it later does not know which option it was."""


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("ssl_cert_reqs=sometimes", "sometimes"),
        ("ssl_min_version=1", "(version|integer)"),
        ("socket_read_size=large", f"{SIZE} has an invalid value"),
    ],
)
def test_an_option_that_can_have_no_such_value_is_refused(option: str, why: str) -> None:
    """Some only once a server is reached. Before 8.1, redis-py takes no version from a URL at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(tubes.BadOption, match=rf"bad store URL: .*{why}"):
            tubes.connect(f"rediss://127.0.0.1:{port}?{option}")


@pytest.mark.parametrize("server", ["redis_url", "postgres_queue_url"])
def test_a_server_may_be_waited_for_as_long_as_one_likes(server: str, request: pytest.FixtureRequest) -> None:
    with tubes.connect(request.getfixturevalue(server), sweep=False, busy_timeout=9e12) as queue:
        queue.tubes()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3])
def test_hiredis_is_not_needed(protocol: int, tube: tubes.Tube, proxy: Proxy) -> None:
    """A user who already has redis-py may not have it."""
    program = (
        "import sys; sys.modules['hiredis'] = None; import tubes; "
        f"queue = tubes.connect('redis://127.0.0.1:{proxy.port}?dead_after=1&protocol={protocol}'); "
        "queue.tube.jobs.put('x'); queue.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_a_database_that_is_not_there_is_an_error(server: RedisServer) -> None:
    assert isinstance(refused(server.url.replace("db=0", "db=99")), tubes.StoreUnavailable)


@pytest.mark.slow
def test_a_server_that_still_loads_is_waited_for(server: RedisServer, caplog: Any) -> None:
    """Such as one that was restarted: it takes connections, and says that it is loading."""
    connect = partial(tubes.connect, server.url)
    with quiet(connect) as queue, redis.Redis.from_url(server.url) as client:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        filler = client.pipeline(transaction=False)
        for number in range(20_000):
            filler.set(f"filler {number}", number)
        filler.execute()
        server.stop("fast")
        with (server.folder / "conf").open("a") as settings:
            settings.write("key-load-delay 50\n")
        starting = threading.Thread(target=server.start)
        starting.start()
        eventually(lambda: says_that_it_loads(client))
        late = threading.Thread(target=lambda: tubes.connect(f"{server.url}&client_name=late").close())
        late.start()
        task = tube.take(timeout=0)
        assert task is not None and task.data == "x"
        late.join()
        starting.join()
    assert not caplog.records  # such as that AOF is off, as it seems meanwhile


def says_that_it_loads(client: redis.Redis) -> bool:
    try:
        client.get("x")
    except redis.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    raise AssertionError("it has loaded already")


def test_a_script_of_somebody_else_is_waited_for(server: RedisServer) -> None:
    """Even if a client must first connect and select a database, which Redis, unlike Valkey, refuses then."""
    url = server.url.replace("db=0", "db=2")
    with tubes.connect(url, sweep=False, busy_timeout=60) as queue:
        tube = queue.create_tube("jobs", "fifo")
        store: Any = queue.store
        store._hub.nodes.close()
        with busy(server):
            ending = threading.Timer(0.1, server.command, ("SCRIPT KILL",))
            ending.start()
            tube.put("x")
            ending.join()


@pytest.mark.timeout(60, method="thread")
def test_a_signal_s_handler_may_call_while_a_session_is_begun_anew(server: RedisServer) -> None:
    """It too finds the session over, in a thread that is in the middle of beginning another."""
    with tubes.connect(server.url, sweep=False, busy_timeout=60) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        store: Any = queue.store
        over = store.session
        server.command("HDEL", "{tubes}:connections", store._connection)
        taken: list[tubes.Task | None] = []

        def handler(number: int, frame: object) -> None:
            server.command("SCRIPT KILL")
            taken.append(tube.take(timeout=0))

        call_while_busy(server, handler, store.prove_life)
        assert taken[0] is not None and taken[0].owner == queue.identify()
        assert store.lost_sessions == {over} and server.command("HLEN", "{tubes}:connections") == 1


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_s_handler_may_call_while_the_server_of_a_hosted_tube_is_waited_for(
    server: RedisServer, tmp_path: Path, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or close the queue, as a handler of SIGTERM does. Then what was being opened is closed again."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 60.0)
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as creator:
        creator.create_tube("jobs", "redis", url=server.url)
    server.stop()
    with tubes.connect(store, sweep=False) as queue:
        tube = queue.tube.jobs
        server.start()

        def handler(number: int, frame: object) -> None:
            server.command("SCRIPT KILL")
            if closes:
                queue.close()
            else:
                tube.put("y")

        with suppress(tubes.StoreUnavailable, tubes.NoSuchTube):
            call_while_busy(server, handler, lambda: tube.put("x"))
        assert closes or [task.data for task in tube.tasks("r")] == ["y", "x"]
    assert server.command("HLEN", "{tubes_hosted}:connections") == 0
    eventually(lambda: server.command("INFO", "clients")["connected_clients"] == 1)


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize("is_hosted", [False, True])
def test_a_child_that_a_handler_forks_in_the_middle_of_a_call_goes_on_with_it(
    server: RedisServer, tmp_path: Path, is_hosted: bool
) -> None:
    """Also on a tube with callbacks, whose calls are done one at a time: no lock is the same there."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if is_hosted else server.url
    children: list[int] = []

    def handler(number: int, frame: object) -> None:
        server.command("SCRIPT KILL")
        children.append(os.fork())

    with tubes.connect(url, sweep=False) as queue:
        options: dict[str, Any] = {"url": server.url} if is_hosted else {}
        type = "redis" if is_hosted else "fifo"
        tube = queue.create_tube("jobs", type, on_task_change=lambda task, event: None, **options)
        tube.put("a")

        def put() -> None:
            status = 1
            try:
                tube.put("b")
                status = 0
            finally:
                if 0 in children:
                    os._exit(status)

        call_while_busy(server, handler, put)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        assert [task.data for task in tube.tasks("r")] == ["a", "b", "b"]


def call_while_busy(
    server: RedisServer, handler: Callable[[int, object], None], call: Callable[[], object]
) -> None:
    """Call while the server runs a script, and have a signal's handler run during the wait."""
    interrupting = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with busy(server):
            interrupting.start()
            call()
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """The server runs an endless script, until somebody kills that or the block ends."""

    def run_for_ever() -> None:
        with suppress(redis.ResponseError):
            server.command("EVAL", "while true do end", 0)

    server.command("CONFIG SET", "lua-time-limit", 1)
    endless = threading.Thread(target=run_for_ever)
    endless.start()
    try:
        eventually(lambda: is_busy(server))
        yield
    finally:
        with suppress(redis.ResponseError):  # it was killed already
            server.command("SCRIPT KILL")
        endless.join()


def is_busy(server: RedisServer) -> bool:
    try:
        server.command("GET", "x")
    except redis.ResponseError:
        return True
    return False


def test_nobody_is_asked_for_the_password_of_a_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even at a terminal, where a worker would wait for the answer."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    request = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -passout pass:s3cret -subj /CN=us"
    )
    subprocess.run([*request.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"rediss://127.0.0.1:{server.getsockname()[1]}?ssl_certfile={certificate}&ssl_keyfile={key}"
        assert isinstance(refused(url), tubes.StoreUnavailable)
    assert "pass phrase" not in capfd.readouterr().err


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One for 127.0.0.1 and redis.test; its key is beside it."""
    made = tmp_path / "certificate"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    request += f" -addext subjectAltName=IP:127.0.0.1,DNS:redis.test -keyout {tmp_path / 'key'} -out {made}"
    subprocess.run(request.split(), check=True, capture_output=True)
    return made


def by_tls(server: RedisServer, certificate: Path) -> Proxy:
    """A proxy that speaks TLS in front of that server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key"))
    return Proxy(server.folder / "redis.sock", context)


def test_tls_is_spoken(server: RedisServer, certificate: Path) -> None:
    """Wake-ups come that way too; a server whose certificate is not trusted is refused."""
    proxy = by_tls(server, certificate)
    try:
        url = f"rediss://127.0.0.1:{proxy.port}"
        assert "certificate" in str(refused(url)).lower()
        with pytest.raises(tubes.BadOption, match="OpenSSL"):  # a package that is missing
            tubes.connect(f"{url}?ssl_cert_reqs=none&ssl_validate_ocsp_stapled=1")
        elsewhere = f"rediss://localhost:{proxy.port}?ssl_ca_certs={certificate}"  # it is another host's
        assert "Hostname mismatch" in str(refused(elsewhere))
        for anyhow in (f"{elsewhere}&ssl_check_hostname=no", f"{elsewhere}&ssl_cert_reqs=none"):
            tubes.connect(anyhow).close()
        with tubes.connect(f"{url}?ssl_ca_certs={certificate}") as queue, tubes.connect(server.url) as other:
            tube = queue.create_tube("jobs", "fifo")
            thread, got = waiting(tube)
            other.tube.jobs.put("x" * 100_000)
            ended(thread)
            assert got[0] is not None and len(got[0].data) == 100_000
            assert tube.ack(got[0])
    finally:
        proxy.close()


def test_a_payload_that_is_too_large_is_said_to_be_so_by_tls_too(
    server: RedisServer, certificate: Path
) -> None:
    """The server hangs up in the middle of it, which is not an error of the connection there, but one of TLS."""
    server.command("CONFIG SET", "proto-max-bulk-len", 1 << 20)
    proxy = by_tls(server, certificate)
    try:
        with tubes.connect(f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={certificate}") as queue:
            tube = queue.create_tube("jobs", "fifo")
            for _ in range(10):
                with pytest.raises(tubes.StoreError, match="the payload is larger than"):
                    tube.put("x" * 8_000_000)
            tube.put("small")
            assert [task.data for task in tube.tasks("r")] == ["small"]
    finally:
        proxy.close()


def test_a_connect_that_can_start_no_thread_is_an_error_of_ours(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves nothing open, and a later connect works."""
    open_files = []
    with no_new_threads(monkeypatch):
        for _ in range(2):
            with pytest.raises(tubes.StoreUnavailable, match="new thread"):
                tubes.connect(server.url, sweep=False)
            open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[1] <= open_files[0]  # what tests before this one left may be closed meanwhile
    with tubes.connect(server.url, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifottl")
        tube.put("x", delay=0.01)
        task = tube.take(timeout=30)
        assert task is not None and task.data == "x"


def test_who_leaves_a_line_has_no_error_of_those_it_would_call(
    own_redis_server: Callable[..., RedisServer],
) -> None:
    """It has what it came for, or came in vain; the others look by themselves."""
    server = own_redis_server()
    with tubes.connect(server.url, sweep=False, busy_timeout=0) as queue:
        tube = queue.create_tube("jobs", "fifo")
        server.command("SET", f"{{tubes:{tube.record.id}}}:waiting", "damaged")
        queue.store.call_instead(tube.record.id, 1)
        server.stop("immediate")
        queue.store.call_instead(tube.record.id, 1)


def test_no_pause_is_too_long_to_be_reckoned() -> None:
    """A server that loads its file for minutes is asked again more than a thousand times."""
    importlib.import_module("tubes.drivers.retries").pause_after(2000)


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_the_server_s_disk_is_never_waited_for_without_end(seconds: float) -> None:
    """0 would mean that, and may be all that is left after the first try."""
    wire = importlib.import_module("tubes.drivers.redis.wire")
    assert wire._waitaof(seconds) == wire._waitaof(0.001)


# Sentinels


@pytest.fixture
def primary() -> Iterator[RedisServer]:
    """A server with a port."""
    server = on_a_port(None)
    yield server
    server.close()


@pytest.fixture
def sentinel(primary: RedisServer) -> Iterator[RedisServer]:
    """One that watches over it, and asks for a password."""
    server = a_sentinel("Jobs_1", primary.port)
    server.command("ACL SETUSER", "default", "resetpass", f">{SECRET}")
    yield server
    server.close()


def asking(sentinel: RedisServer, name: str, password: str = SECRET) -> str:
    """The URL of the primary of that name, by a Sentinel that is away and this one."""
    return f"redis://{name}/2?sentinel=127.0.0.1:1,127.0.0.1:{sentinel.port}&sentinel_password={password}"


def test_a_sentinel_tells_where_the_primary_is(sentinel: RedisServer) -> None:
    """Of several, one that answers is enough."""
    with tubes.connect(asking(sentinel, "Jobs_1")) as queue:
        queue.create_tube("jobs", "fifo").put("x")
        with tubes.connect(asking(sentinel, "Jobs_1")) as other:
            assert take(other.tube.jobs).data == "x"
        with tubes.connect("sqlite://") as host:
            tube = host.create_tube("hosted", "redis", url=asking(sentinel, "Jobs_1"))
            assert tube.put("y").data == "y" and SECRET not in str(tube.record)


@pytest.mark.parametrize(
    ("name", "password", "why"),
    [
        ("jobs_1", SECRET, "127.0.0.1:1 says: .*refused.*knows no 'jobs_1'"),
        ("Jobs_1", "wrong", "127.0.0.1:1 says: .*refused.*invalid username-password"),
    ],
)
def test_sentinels_that_do_not_tell_are_an_error_that_says_why(
    sentinel: RedisServer, name: str, password: str, why: str
) -> None:
    with pytest.raises(tubes.StoreUnavailable, match=why) as caught:
        tubes.connect(asking(sentinel, name, password), busy_timeout=0.3)
    assert SECRET not in str(caught.value) and "wrong" not in str(caught.value)


def test_a_primary_that_is_none_any_more_is_not_used(primary: RedisServer, sentinel: RedisServer) -> None:
    """Sentinels may not know it yet."""
    primary.command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(tubes.StoreUnavailable, match=f"127.0.0.1:{primary.port} is a replica"):
        tubes.connect(asking(sentinel, "Jobs_1"), busy_timeout=0.3)


def test_a_primary_that_was_replaced_is_left_though_it_still_answers(
    primary: RedisServer, sentinel: RedisServer
) -> None:
    """As it does for some seconds after SENTINEL FAILOVER; it forgets what it did meanwhile."""
    with ExitStack() as closing:
        successor = on_a_port(None)
        closing.callback(successor.close)
        url = f"{asking(sentinel, 'Jobs_1')}&dead_after=6"
        queue = closing.enter_context(tubes.connect(url, sweep=False))
        store: Any = queue.store
        tube = queue.create_tube("jobs", "fifo")
        thread, got = waiting(tube)
        successor.follow(primary)
        successor.command("REPLICAOF", "NO", "ONE")
        with redis.Redis(port=sentinel.port, password=SECRET) as client:
            client.sentinel_remove("Jobs_1")
            client.sentinel_monitor("Jobs_1", "127.0.0.1", successor.port, 1)
        eventually(lambda: store._hub.nodes.primary[1] == successor.port)
        assert tube.put("x").data == "x"
        ended(thread)
        assert [task and task.data for task in got] == ["x"]
        with tubes.connect(f"redis://127.0.0.1:{successor.port}/2", sweep=False) as there:
            assert there.tube.jobs.peek(1).data == "x"


@pytest.mark.parametrize(
    "url",
    [
        "redis://mymaster:6379/0?sentinel=127.0.0.1",
        "redis:///0?sentinel=127.0.0.1",
        "redis://mymaster?sentinel=",
        "redis://mymaster?sentinel=127.0.0.1,,127.0.0.2",
        "redis://mymaster?sentinel=127.0.0.1:port",
        "redis://mymaster?sentinel=[::1",
        "unix:///nowhere/redis.sock?sentinel=127.0.0.1",
    ],
)
def test_addresses_of_sentinels_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(tubes.BadOption, match="with Sentinels, write redis://mymaster/0"):
        tubes.connect(url)


def test_sentinels_are_asked_by_tls_like_the_primary(primary: RedisServer, certificate: Path) -> None:
    with ExitStack() as closing:
        to_primary = by_tls(primary, certificate)
        closing.callback(to_primary.close)
        sentinel = a_sentinel("mymaster", to_primary.port)
        closing.callback(sentinel.close)
        to_sentinel = by_tls(sentinel, certificate)
        closing.callback(to_sentinel.close)
        url = f"rediss://mymaster?sentinel=127.0.0.1:{to_sentinel.port}"
        assert "certificate" in str(refused(url, busy_timeout=0.3)).lower()
        with tubes.connect(f"{url}&ssl_ca_certs={certificate}") as queue:
            assert queue.create_tube("jobs", "fifo").put("x").data == "x"


def test_a_cluster_is_not_asked_for_by_sentinels(redis_cluster: str) -> None:
    port = urlsplit(redis_cluster).port
    assert port is not None
    sentinel = a_sentinel("mymaster", port)
    try:
        with pytest.raises(tubes.BadOption, match="a node of a Cluster needs"):
            tubes.connect(f"redis://mymaster?sentinel=127.0.0.1:{sentinel.port}")
    finally:
        sentinel.close()
