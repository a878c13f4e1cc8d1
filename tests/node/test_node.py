"""A client in another language takes part: one in Node, made from docs/reference/redis.md, shares tubes."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
from faults.harness import eventually
from faults.proxy import Proxy
from redis_servers import RedisServer

import tubes

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")

HERE = Path(__file__).parent
SCRIPTS = files("tubes.drivers.redis") / "lua"
DEAD_AFTER = 1.5
MISSING = "{} is needed and was not found: install Node.js 20 or newer with npm (nodejs.org, or your system's packages)"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's program, beside what it needs, which npm installs once a run."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.fail(MISSING.format(tool))
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "node"
    with (base / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return folder / "talk.mjs"


def _install(folder: Path) -> None:
    unfinished = folder.with_name("node-unfinished")
    unfinished.mkdir()
    for file in ("package.json", "package-lock.json", "client.mjs", "talk.mjs"):
        shutil.copy(HERE / file, unfinished)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True)
    assert done.returncode == 0, f"npm could not install the package redis:\n{done.stdout}{done.stderr}"
    unfinished.rename(folder)


class Node:
    """A Node process with a client of one tube."""

    def __init__(self, program: Path, url: str, tube: str, floor: float = 0.5) -> None:
        command = ["node", str(program), url, tube, str(SCRIPTS), str(DEAD_AFTER), str(floor)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def do(self, verb: str, *given: object) -> Any:
        """Return what the verb answers there."""
        self.begin(verb, *given)
        return self.answer()

    def begin(self, verb: str, *given: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps([verb, *given]), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the answer to what was begun."""
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def close(self) -> None:
        """Let it end, and check that it ends without errors."""
        _, errors = self.process.communicate(timeout=30)
        assert (self.process.returncode, errors) == (0, "")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Node]


@pytest.fixture
def start(program: Path, redis_db: str) -> Iterator[Start]:
    """Starts a client of a tube."""
    with ExitStack() as started:

        def start(*arguments: Any) -> Node:
            node = Node(program, redis_db, *arguments)
            started.callback(node.kill)
            return node

        yield start


@pytest.fixture
def queue(redis_db: str) -> Iterator[tubes.Queue]:
    with tubes.connect(f"{redis_db}{'&' if '?' in redis_db else '?'}dead_after={DEAD_AFTER}") as queue:
        yield queue


def test_workers_in_node_and_python_share_a_tube(queue: tubes.Queue, start: Start) -> None:
    """Each task goes to one of them, whoever put it; sub-queues are kept apart, and everything is counted."""
    jobs = queue.create_tube("jobs", "utubettl", ttr=60)
    node, writer = start("jobs"), start("jobs")

    def work() -> list[Any]:
        done = []
        while (task := jobs.take(30)) is not None:
            busy = [each.utube for each in jobs.tasks("t")]
            assert len({*busy}) == len(busy)
            jobs.ack(task)
            if task.data == "stop":
                break
            done.append(task.data)
        return done

    node.begin("work", 30)
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(work)
        for n in range(60):
            jobs.put([n, "from Python ☃"], utube=f"host {n % 7}")
            assert isinstance(writer.do("put", [n, "from Node ☃"], {"utube": f"host {n % 7}"}), int)
        jobs.put_many(["stop", "stop"], pri=1)
        ours, theirs = worker.result(), node.answer()
    assert ours and theirs
    assert sorted(ours + theirs) == sorted(
        [n, f"from {who} ☃"] for who in ("Python", "Node") for n in range(60)
    )
    for each in (node, writer):
        each.close()
    statistics = jobs.statistics()
    assert (statistics["tasks"]["total"], statistics["tasks"]["done"]) == (0, 122)
    assert [statistics["calls"][call] for call in ("put", "take", "ack")] == [122] * 3


@pytest.mark.slow
def test_sub_queues_have_the_same_names_in_both(queue: tubes.Queue, start: Start) -> None:
    """The unnamed one, the one whose name is empty, and those whose names look like a stored one."""
    jobs = queue.create_tube("jobs", "utube")
    node = start("jobs")
    names = [None, "", "\1", "\1a", "a b"]
    for name in names:
        jobs.put("from Python", utube=name)
        node.do("put", "from Node", {"utube": name})
    ours = [jobs.take(0) for _ in names]
    assert [task and task.utube for task in ours] == names
    assert node.do("take", 0) is None
    jobs.ack_many([task for task in ours if task])
    assert [node.do("take", 0)["utube"] for _ in names] == names
    assert [task.utube for task in jobs.tasks("t")] == names


@pytest.mark.slow
def test_options_mean_the_same_in_both(queue: tubes.Queue, start: Start) -> None:
    jobs = queue.create_tube("jobs", "limfifottl", ttl=60, ttr=30, capacity=3)
    node = start("jobs")
    node.do("put", "late", {"delay": 1500, "pri": 3})
    node.do("put", [1, None, "x"], {"pri": 2})
    jobs.put("first", pri=1, ttr=5)
    assert node.do("put", "too many") == {"error": "the tube is full"}
    late, second, first = (jobs.peek(id) for id in (1, 2, 3))
    assert (late.state, late.ttl, late.ttr) == (tubes.State.DELAYED, 61.5, 30.0)
    assert (second.data, second.pri, second.ttl, second.ttr) == ([1, None, "x"], 2, 60.0, 30.0)
    assert late.due_at is not None and (late.due_at - late.created_at).total_seconds() == 1.5
    assert node.do("take", 0)["data"] == first.data
    assert node.do("ack") is True and node.do("ack") is False
    taken = jobs.take(0)
    assert taken is not None and taken.data == second.data
    assert node.do("take", 5)["data"] == "late"  # it waits for the end of the delay
    node.close()


@pytest.mark.slow
def test_what_is_over_takes_up_no_room(redis_db: str, start: Start) -> None:
    """There is no Python process that would settle it."""
    with tubes.connect(redis_db, sweep=False) as queue:
        jobs = queue.create_tube("jobs", "limfifottl", capacity=2)
        jobs.put("over", ttl=0)
        jobs.put("stays")
        node = start("jobs")
        assert node.do("put", "has room") == 3
        assert node.do("put", "too many") == {"error": "the tube is full"}
        assert [task.data for task in jobs.tasks("r")] == ["stays", "has room"]
        node.close()
        assert jobs.statistics()["calls"]["ttl"] == 1


@pytest.mark.slow
def test_payloads_are_bytes_too(queue: tubes.Queue, start: Start) -> None:
    """The payload of a task that is settled with the take looks like an event."""
    jobs = queue.create_tube("jobs", "fifottl")
    jobs.put(b"take", ttl=0.001)
    jobs.put(b"\xff\0")
    node = start("jobs")
    assert node.do("take", 0)["data"] == {"type": "Buffer", "data": [255, 0]}
    assert node.do("ack") is True
    node.do("put bytes", [255, 0])
    task = jobs.take(0)
    assert task is not None and task.data == b"\xff\0"
    node.close()


@pytest.mark.slow
def test_what_a_tube_cannot_have_is_refused(queue: tubes.Queue, start: Start) -> None:
    """It would be in nobody's index, or in everybody's way."""
    jobs = queue.create_tube("jobs", "fifo")
    node = start("jobs")
    for options in ({"ttl": 1}, {"ttr": 1}, {"delay": 1}, {"pri": 1}, {"utube": "a"}):
        assert node.do("put", "x", options) == {"error": f"the tube has no {next(iter(options))}"}
    assert node.do("put nothing") == {"error": "JSON cannot carry undefined"}
    assert jobs.take(0) is None
    node.close()
    queue.create_tube("fleeting", "fifo", temporary=True)
    with pytest.raises(AssertionError, match="temporary fifo, which is unknown here"):
        start("fleeting")


@pytest.mark.slow
def test_what_nobody_could_read_is_refused(queue: tubes.Queue, start: Start) -> None:
    """Otherwise, it would stay with whoever takes it, or stand before another sub-queue's tasks."""
    jobs = queue.create_tube("jobs", "utubettl")
    node = start("jobs")
    for option, value in (
        ("ttl", 0.5),
        ("ttr", -1),
        ("delay", "1"),
        ("pri", 2**53),
        ("utube", "a\0"),
        ("utube", 1),
    ):
        assert node.do("put", "x", {option: value}) == {"error": f"{option} cannot be {value}"}
    assert jobs.statistics()["tasks"]["total"] == 0
    node.do("put", "y", {"ttl": 2**53 - 1, "ttr": 0, "delay": None, "pri": 2**53 - 1, "utube": None})
    assert jobs.statistics()["tasks"]["ready"] == 1


def test_each_wakes_the_other(redis_db: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bell: nobody looks by itself for a minute."""
    listener = importlib.import_module("tubes.drivers.redis.listener")
    monkeypatch.setattr(listener, "FLOOR", 60)
    monkeypatch.setattr(listener, "SAID_FOR", 60)
    with tubes.connect(redis_db) as queue, ThreadPoolExecutor() as pool:
        jobs = queue.create_tube("jobs", "fifo")
        node = start("jobs", 60)
        node.begin("take", 30)
        _until_somebody_waits(redis_db, jobs)
        jobs.put("for Node")
        assert node.answer()["data"] == "for Node"
        assert node.do("ack") is True
        take = pool.submit(jobs.take, 30)
        _until_somebody_waits(redis_db, jobs)
        node.do("put", "for Python")
        task = take.result()
        assert task is not None and task.data == "for Python"
        node.close()


@pytest.mark.slow
def test_a_task_that_came_is_told_though_nothing_can_be_said_after_it(
    queue: tubes.Queue, redis_db: str, start: Start
) -> None:
    jobs = queue.create_tube("jobs", "fifo")
    node = start("jobs", 60)
    node.begin("take", 30)
    _until_somebody_waits(redis_db, jobs)
    node.process.send_signal(signal.SIGSTOP)
    jobs.put("x")
    with redis.Redis.from_url(redis_db) as client:  # what a take does not look at, unless somebody calls
        client.rename(f"{{tubes:{jobs.record.id}}}:waiting", "aside")
        client.set(f"{{tubes:{jobs.record.id}}}:waiting", "torn")
    node.process.send_signal(signal.SIGCONT)
    assert node.answer()["data"] == "x"


@pytest.mark.slow
def test_what_an_unknown_take_has_taken_comes_back(
    own_redis_server: Callable[..., RedisServer], program: Path
) -> None:
    """At once, not when the client ends."""
    server = own_redis_server()
    with ExitStack() as stack:
        jobs = stack.enter_context(tubes.connect(server.url, sweep=False)).create_tube("jobs", "fifo")
        jobs.put("x")
        proxy = Proxy(server.folder / "redis.sock")
        stack.callback(proxy.close)
        node = Node(program, f"redis://127.0.0.1:{proxy.port}", "jobs")
        stack.callback(node.kill)
        assert node.do("take", 0)["data"] == "x"  # from now on the server knows the script by its hash
        assert node.do("ack") is True
        jobs.put("y")
        proxy.cut_after = scripts.TAKE.sha.encode()
        assert "error" in node.do("take", 0)
        assert [task.data for task in jobs.tasks("t")] == ["y"]
        assert node.do("take", 0)["data"] == "y"
        assert node.do("ack") is True
        node.close()
        assert jobs.statistics()["calls"]["release"] == 1


def _until_somebody_waits(url: str, tube: tubes.Tube) -> None:
    with redis.Redis.from_url(url) as client:
        eventually(lambda: client.exists(f"{{tubes:{tube.record.id}}}:waiting"))


@pytest.mark.slow
def test_a_stopped_client_loses_its_task_and_goes_on_in_a_new_session(
    queue: tubes.Queue, start: Start
) -> None:
    """It was taken for dead. Its ack is refused, and what it takes next is its own."""
    jobs = queue.create_tube("jobs", "fifo")
    jobs.put("x")
    node = start("jobs")
    session = node.do("session")
    node.do("take", 0)
    node.process.send_signal(signal.SIGSTOP)
    task = jobs.take(20)
    assert task is not None and task.data == "x"
    node.process.send_signal(signal.SIGCONT)
    assert node.do("ack") is False
    jobs.ack(task)
    jobs.put("y")
    assert node.do("take", 5)["data"] == "y"
    assert node.do("session") != session
    assert node.do("ack") is True
    node.close()
