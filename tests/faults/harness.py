"""Worker processes to kill and stop, and the account of what became of every task."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import interpreter
import psycopg
import pytest
from interpreter import PIPE, Process

import tubes
from tubes.clock import Signal
from tubes.testing import FakeClock
from tubes.testing.suite import take

Connect = Callable[..., tubes.Queue]

WORKER = Path(__file__).with_name("worker.py")
ENOUGH = 21
"""Acks that a torment needs to show anything, however slow the machine is."""

TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")

HOLDER = """
import sys, tubes
queue = tubes.connect(sys.argv[1], sweep=False)
for name in sys.argv[2:]:
    assert queue.tube[name].take(0) is not None
print("holds", flush=True)
sys.stdin.readline()
"""
"""A program that takes a task from each tube that it is given, and holds them until it is ended."""

DESCRIPTORS = """
import contextlib, os, resource

@contextlib.contextmanager
def free_descriptors(count):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.dup(0) for _ in range(count + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1], most[1]))
    for descriptor in held:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
"""
"""The start of a program that needs to have exactly so many free descriptors for a while."""


def quiet(connect: Connect, **options: Any) -> tubes.Queue:
    """A queue that does nothing in the background, such as storing its counts or checking whether it is alive."""
    queue = connect(sweep=False, **options)
    queue._sweeper.stop()
    return queue


def eventually(holds: Callable[[], object], within: float = 60.0) -> None:
    """Wait until something is true of other processes; fail if it does not become true in time."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not so within {within} s: {holds}"
        time.sleep(0.002)  # real time: other processes do what we wait for


def ended(*threads: threading.Thread, within: float = 60.0) -> None:
    """Wait until these threads have ended; fail if one does not in time."""
    for thread in threads:
        thread.join(within)
        assert not thread.is_alive(), f"{thread} has not ended within {within} s"


def seconds_each(count: int, call: Callable[[], object]) -> list[float]:
    """How long a call takes in so many threads at once: the times of those in which it returns."""
    took: list[float] = []

    def timed() -> None:
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=timed) for _ in range(count)]
    for thread in threads:
        thread.start()
    ended(*threads)
    return took


def left_open(folder: Path) -> list[str]:
    """What this process has open in a folder: of what it has open elsewhere, tests before this one may close some."""
    opened = [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]
    return [path for path in opened if path.startswith(f"{folder}/")]


def let_through_until_vacuumed(tube: tubes.Tube, db: psycopg.Connection, table: str = "tubes_task") -> None:
    """Put, take and ack until a queue has vacuumed the tube's table in PostgreSQL once more."""

    def vacuums() -> Any:
        return db.execute("SELECT pg_stat_get_vacuum_count(CAST(%s AS regclass))", (table,)).fetchall()

    def has_come() -> bool:
        tube.put_many(range(500))
        tube.ack_many(tube.take_many(500, timeout=0))
        return bool(vacuums() > before)

    before = vacuums()
    eventually(has_come)


def waiting(tube: tubes.Tube, timeout: float | None = 60) -> tuple[threading.Thread, list[tubes.Task | None]]:
    """A thread that waits for a task, and what it gets."""
    got: list[tubes.Task | None] = []
    thread = threading.Thread(target=lambda: got.append(tube.take(timeout=timeout)), daemon=True)
    thread.start()
    eventually(lambda: tube._store.waiters.count(tube.record.id) or not thread.is_alive())
    return thread, got


@contextmanager
def handler_that_raises(name: str | None = None) -> Iterator[None]:
    """Give that logger a handler that fails, such as one that writes to a server that is away as well."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no route to host")

    logger, broken = logging.getLogger(name), Broken()
    logger.addHandler(broken)
    try:
        yield
    finally:
        logger.removeHandler(broken)


class EventfulClock(FakeClock):
    """A clock that makes something happen when it is next read, in the middle of the work that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None

    def now_ms(self) -> int:
        then, self.then = self.then, None
        if then is not None:
            then()
        return super().now_ms()


class Ended(Exception):
    """Ends a wait, as a cancellation does."""


def end_when_woken(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each wait on a clock end with Ended as soon as it is woken."""
    wait = clock.wait

    def end(signal: Signal, timeout: float | None) -> bool:
        wait(signal, timeout)
        raise Ended

    monkeypatch.setattr(clock, "wait", end)


def put_before_it_leaves(tube: tubes.Tube, data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the next member that leaves the line put one more task first, when it has what it waited for."""
    waiters = tube._store.waiters
    leave = waiters.leave

    def put_and_leave(*given: Any) -> bool:
        monkeypatch.setattr(waiters, "leave", leave)
        tube.put(data)
        return leave(*given)

    monkeypatch.setattr(waiters, "leave", put_and_leave)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Have another thread do that again and again, until the block ends."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        ended(thread)


class Growing(weakref.WeakSet[Any]):
    """A set to which another thread adds something while it is iterated over."""

    other: Any = None
    """What that thread has added."""

    def __init__(self, add: Callable[[], Any], members: Sequence[Any] = ()) -> None:
        super().__init__(members)
        self._add = add

    def __iter__(self) -> Iterator[Any]:
        walk = super().__iter__()
        yield next(walk)
        if self.other is None:
            self.other = self._add()
        yield from walk


class Struck(BaseException):
    """Raised by the handler of a signal, as Ctrl-C raises KeyboardInterrupt."""


def strike(call: Callable[[], object], at: int) -> bool:
    """Call it, with a signal after so many returns of C functions; tell whether it got that far.

    These are among the places where Python runs handlers, so a test that counts up from 1 leaves none of them out. If
    what a handler raises is only printed (in a ``__del__``, or a callback of a weak reference or of the garbage
    collector), another signal follows after the next return.
    """
    returns = 0

    def count(frame: FrameType, event: str, what: object) -> None:
        nonlocal returns
        if event == "c_return" and frame.f_code is not again.__code__:
            returns += 1
            if returns == at:
                signal.raise_signal(signal.SIGUSR1)

    def again(printed: sys.UnraisableHookArgs) -> None:
        nonlocal at
        if printed.exc_type is not Struck:
            return print_it(printed)
        at = returns + 1
        sys.setprofile(count)  # the exception has ended it

    def raise_struck(number: int, frame: FrameType | None) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, raise_struck)
    sys.unraisablehook, print_it = again, sys.unraisablehook
    sys.setprofile(count)
    try:
        call()
    except Struck:
        pass
    finally:
        sys.setprofile(None)
        sys.unraisablehook = print_it
        signal.signal(signal.SIGUSR1, before)
    return returns >= at


def join_forgotten(connect: Callable[..., tubes.Queue], forget: Callable[[int], None]) -> None:
    """Join a session with a queue whose connection the store has forgotten, and work in it."""
    leaver, joiner = connect(session_ttr=60, sweep=False), connect(sweep=False)
    tube = leaver.create_tube("jobs", "fifo")
    tube.put_many(["held", "free"])
    task = take(tube)
    session = leaver.identify()
    leaver.close()
    store: Any = joiner.store
    forget(store._connection)
    assert joiner.identify(session) == session
    free = joiner.tube.jobs.take(timeout=0)
    assert free is not None and free.owner == session == joiner.identify()
    assert joiner.tube.jobs.ack(task).state is tubes.State.DONE


@contextmanager
def no_new_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make starting a thread fail, as if the process may have no more of them."""

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        yield


def rescue_in_moments(
    connect: Callable[[], tubes.Queue],
    process: Callable[..., Any],
    url: str,
    beat: Callable[[Any], object],
    pass_time: Callable[[], object],
) -> None:
    """Kill one of two that hold a task: of the short-lived queues that then look at due times, the third gets it.

    ``beat`` beats for the other process, whose store it is given; ``pass_time`` makes the next roll call due.
    """
    with connect() as living:
        tube = living.create_tube("jobs", "fifo")
        tube.put_many(["dead", "living"])
        holder = process(
            "import sys, tubes; print(tubes.connect(sys.argv[1]).tube.jobs.take(0)); input()", url
        )
        heard(holder)
        holder.kill()
        held = tube.take(timeout=0)
        assert held is not None and held.data == "living"
        got = []
        for _ in range(4):
            pass_time()
            for _ in range(2):  # the second one comes too soon to count
                with connect() as queue:
                    task = queue.tube.jobs.take(timeout=0)
                    got.append(task and queue.tube.jobs.ack(task).data)
            beat(living.store)
    assert got == [*[None] * 4, "dead", *[None] * 3]


def look_in_hastier_moments(connect: Callable[..., tubes.Queue], pass_time: Callable[[int], object]) -> None:
    """Look with a smaller ``dead_after``, such as the command line's: each is called as seldom as it beats itself."""
    with connect(dead_after=60) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        task = tube.take(timeout=0)
        for _ in range(9):
            with connect(dead_after=3) as other:
                assert other.tube.jobs.take(timeout=0) is None
            pass_time(1_001)
        assert task is not None and tube.ack(task).data == "x"


def take_looking_seldom(tube: tubes.Tube) -> tubes.Task:
    """Take what a killed process held, looking only every 1.2 seconds."""
    for _ in range(15):
        task = tube.take(timeout=0)
        if task is not None:
            return task
        time.sleep(1.2)  # real time: beats are timed by it, and the killed process makes none
    raise AssertionError("what a killed process held was not to be had")


@dataclass
class Crew:
    """Worker processes on one tube ``jobs`` of one store, and their shared log."""

    folder: Path
    type: str = "fifo"
    connect: dict[str, Any] = field(default_factory=lambda: {"durability": "off"})
    tube: dict[str, Any] = field(default_factory=dict)
    workers: dict[Process, str] = field(default_factory=dict)
    started: int = 0
    server: str = ""
    """The URL of a database on a server; else it is a SQLite file in the folder."""
    patience: float = 0.2
    """Seconds within which what the dead hold must be ready again."""

    @property
    def url(self) -> str:
        """The URL of the queue that the workers use."""
        return self.server or f"sqlite:///{self.folder / 'crew.db'}"

    @property
    def log(self) -> Path:
        """The file in which they log what they do."""
        return self.folder / "crew.log"

    def start(self, role: str, **settings: Any) -> Process:
        """Start a worker process, not a fork of this one."""
        self.started += 1
        settings |= {
            "url": self.url,
            "log": str(self.log),
            "type": self.type,
            "connect": self.connect,
            "tube": self.tube,
            "start": self.started,
        }
        worker = Process([WORKER, role, json.dumps(settings)])
        self.workers[worker] = role
        return worker

    def kill(self, worker: Process) -> str:
        """SIGKILL it, wait until it is gone, and return its role."""
        worker.kill()
        worker.wait()
        return self.workers.pop(worker)

    def check_alive(self) -> None:
        """Fail if a worker ended by itself."""
        for worker in self.workers:
            assert worker.poll() is None, f"a worker ended by itself, with status {worker.returncode}"

    def lines(self) -> list[list[str]]:
        """The words of each line of the log, in order of time."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def acked(self) -> int:
        """How many acks the workers have seen answered."""
        return self.log.read_bytes().count(b"\nack!") if self.log.exists() else 0

    def said(self, word: str, times: int = 1) -> Callable[[], bool]:
        """A question for ``eventually``: does the log have that word so many times?"""
        return lambda: sum(line[0] == word for line in self.lines()) >= times

    def open(self, **settings: Any) -> tuple[tubes.Queue, tubes.Tube]:
        """Open the same tube in this process."""
        queue = tubes.connect(self.url, **(self.connect | settings))
        return queue, queue.create_tube("jobs", self.type, if_not_exists=True, **self.tube)

    def disband(self) -> None:
        """Kill all workers that are left, including stopped ones."""
        for worker in list(self.workers):
            self.kill(worker)


def torment(
    crew: Crew,
    seconds: float,
    kills: int,
    *,
    producers: int = 2,
    consumers: int = 3,
    longest_stop: float = 0.8,
    meanwhile: Sequence[tuple[Meanwhile, int]] = (),
    seed: int | None = None,
) -> int:
    """Kill, stop and continue workers at random moments, replacing the dead; return how many were killed.

    Goes on for at least ``seconds``, until ``kills`` workers were killed, ``ENOUGH`` tasks acked, and everything in
    ``meanwhile`` was done as often as it must be. In the end all workers are killed.
    """
    dice = random.Random(seed)
    for role, count in (("produce", producers), ("consume", consumers)):
        for _ in range(count):
            crew.start(role)
    eventually(lambda: crew.acked() >= 5)
    stopped: list[tuple[float, Process]] = []
    end = time.monotonic() + seconds
    pace = Pace(crew)
    killed = 0
    while (
        killed < kills
        or time.monotonic() < end
        or crew.acked() < ENOUGH
        or any(other.times < times for other, times in meanwhile)
    ):
        time.sleep(dice.random() * max(seconds / kills, 0.05) * 1.2)
        crew.check_alive()
        assert all(other.is_alive() for other, _ in meanwhile), "what goes on meanwhile has failed"
        if pace.allows_more():
            victim = dice.choice(list(crew.workers))
            if dice.random() < 0.35:
                victim.send_signal(signal.SIGSTOP)
                stopped.append((time.monotonic() + dice.random() * longest_stop, victim))
            else:
                crew.start(crew.kill(victim))
                killed += 1
        for until, worker in list(stopped):
            if time.monotonic() >= until:
                stopped.remove((until, worker))
                with suppress(ProcessLookupError):
                    worker.send_signal(signal.SIGCONT)
    crew.check_alive()
    for worker in crew.workers:
        worker.send_signal(signal.SIGCONT)
    ended = list(crew.workers)
    crew.disband()
    return killed + len(ended)


class Pace:
    """Lets workers ack something between two blows, however slow the machine is: else they would get nowhere."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._acked = 0

    def allows_more(self) -> bool:
        """Tell whether they have acked something since the last call."""
        before, self._acked = self._acked, self._crew.acked()
        return self._acked > before


class Meanwhile(threading.Thread):
    """Does something to a crew again and again, at that pace, until the block is over."""

    def __init__(self, crew: Crew, every: float, act: Callable[[], Any]) -> None:
        super().__init__()
        self._pace = Pace(crew)
        self._every = every
        self._act = act
        self._over = threading.Event()
        self.times = 0

    def run(self) -> None:
        while not self._over.wait(self._every):
            if self._pace.allows_more():
                self._act()
                self.times += 1

    def __enter__(self) -> Meanwhile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


def drain(crew: Crew) -> dict[int, str]:
    """Take and ack all that is left, in a process that outlived the others; return the data by id.

    Nothing may be stuck: takes must get everything, with no more patience than dead sessions and delays require.
    """
    queue, tube = crew.open()
    left: dict[int, str] = {}
    with queue:
        while task := tube.take(timeout=0.2) or _patient_take(crew, tube):
            assert task.id not in left, f"{task} was handed out again after its ack"
            left[task.id] = task.data
            crew_log(crew, "take", task.id, task.token, task.data)
            tube.ack(task)
        tasks = tube.statistics()["tasks"]
        assert tasks["total"] == 0, f"stuck: {tasks}, {tube.tasks('t')}, {tube.tasks('r')}"
    return left


def _patient_take(crew: Crew, tube: tubes.Tube) -> tubes.Task | None:
    return tube.take(timeout=crew.patience) if tube.statistics()["tasks"]["total"] else None


def crew_log(crew: Crew, *words: object) -> None:
    """Write to the log as a worker does."""
    with crew.log.open("a") as log:
        log.write(" ".join(map(str, words)) + "\n")


@dataclass(frozen=True)
class Account:
    """What became of the tasks."""

    put: int
    acked: int
    taken: int
    unsure: int
    left: int


def settle(lines: Sequence[Sequence[str]], left: dict[int, str]) -> Account:
    """Check the log against what was left: nothing lost, nothing acked twice, no lease handed out twice.

    A worker that was killed inside a call has logged what it was about to do, but not the outcome; for those
    calls, and no others, both outcomes are right.
    """
    by_word: dict[str, list[Sequence[str]]] = defaultdict(list)
    for line in lines:
        by_word[line[0]].append(line[1:])
    stored = {n: int(id) for n, id in by_word["put!"]}
    acks = Counter(int(id) for id, _ in by_word["ack!"])
    tried = {int(id) for id, _ in by_word["ack?"]}
    leases = Counter((int(id), int(token)) for id, token, *_ in by_word["take"])
    last_lease: dict[int, int] = {}
    named: dict[str, set[int]] = defaultdict(set)
    for id, token, n, *_ in by_word["take"]:
        last_lease[int(id)] = max(last_lease.get(int(id), 0), int(token))
        named[n].add(int(id))

    lost = [n for n, id in stored.items() if id not in tried and id not in left]
    assert not lost, f"{len(lost)} of {len(stored)} tasks are lost: {lost[:5]}"
    twice = [id for id, times in acks.items() if times > 1]
    assert not twice, f"acked twice: {twice[:5]}"
    leased_twice = [lease for lease, times in leases.items() if times > 1]
    assert not leased_twice, f"one lease, two holders: {leased_twice[:5]}"
    for id, token in by_word["ack!"]:
        assert int(id) not in left, f"task {id} was acked and still there"
        assert last_lease[int(id)] <= int(token), f"task {id} was handed out again after its ack"
    refused = [n for (n,) in by_word["put-"] if n in named]
    assert not refused, f"refused puts were stored: {refused[:5]}"
    stored_twice = [n for n, ids in named.items() if len(ids) > 1]
    assert not stored_twice, f"one put, two tasks: {stored_twice[:5]}"
    unsure = len(tried) - len(acks)
    return Account(len(stored), len(acks), sum(leases.values()), unsure, len(left))


def numbers() -> itertools.count[int]:
    """Fresh numbers for fresh names."""
    return itertools.count()


def run(code: str, *arguments: object, within: float = 60.0) -> str:
    """Run a piece of Python in a process of its own; return what it printed. Fails if it or a thread of it fails."""
    done = interpreter.run(["-c", code, *arguments], timeout=within, text=True)
    assert done.returncode == 0 and "Exception in thread" not in done.stderr, done.stderr
    return str(done.stdout).strip()


def begin(code: str, *arguments: object) -> Process:
    """Start a piece of Python in a process of its own, with pipes."""
    return Process(["-c", code, *arguments], stdin=PIPE, stdout=PIPE, text=True)


def heard(worker: Process) -> str:
    """The next line that the process prints."""
    assert worker.stdout is not None
    return str(worker.stdout.readline()).strip()


def tell(worker: Process, line: str = "") -> None:
    """Let the process go on, by giving it a line to read."""
    assert worker.stdin is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def finish(worker: Process) -> None:
    """End a process whatever state it is in."""
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
