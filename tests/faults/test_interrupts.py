"""close(), Ctrl-C and SIGTERM end a waiting take at once, and no interrupt at any moment loses a task."""

from __future__ import annotations

import inspect
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.harness import Connect, Struck, ended, eventually, heard, quiet, run, strike, tell

import tubes
import tubes.aio
from tubes.interrupts import guarded
from tubes.testing import FakeClock
from tubes.testing.suite import Waiting, take

STRESS = """
import os, random, signal, sys, threading, time, tubes
path, manner, durability, times, seconds = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])
queue = tubes.connect("sqlite:///" + path, durability=durability)
tube = queue.create_tube("jobs", "fifo")
if manner == "busy":
    tube.put_many(range(30000))
over, armed = threading.Event(), threading.Event()
RAISING = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1]
for number in RAISING:  # also where SIGINT is ignored, as in a shell's background jobs
    signal.signal(number, signal.default_int_handler)

def feed():
    while manner == "waiting" and not over.is_set():
        tube.put("x")
        time.sleep(random.random() * 0.0008)

def interrupt():
    while armed.wait() and not over.is_set():
        armed.clear()
        time.sleep(random.random() * 0.003)
        os.kill(os.getpid(), random.choice(RAISING))

def again(printed):  # what was raised where it can only be printed, in a __del__ say, ends no take
    if printed.exc_type is KeyboardInterrupt:
        armed.set()
    else:
        sys.__unraisablehook__(printed)

sys.unraisablehook = again
threads = [threading.Thread(target=work) for work in (feed, interrupt)]
for thread in threads:
    thread.start()
caught = unknown = 0
end = time.monotonic() + seconds
while caught < times and (caught < times / 10 or time.monotonic() < end):  # fewer, where the machine is slow
    held = None
    try:
        armed.set()
        while True:
            held = None
            held = tube.take(timeout=None)
            tube.ack(held)
    except KeyboardInterrupt:
        caught += 1
    for task in tube.tasks("t"):  # we hold what we were given and not acked yet, and nothing else
        if held is None or task.id != held.id:
            unknown += 1
        tube.release(task)
over.set()
armed.set()
for thread in threads:
    thread.join()
print(caught, unknown)
left = tube.statistics()
calls, tasks = left["calls"], left["tasks"]
print(calls["put"] - calls["ack"] == tasks["total"] == tasks["ready"])
queue.close()
"""


@pytest.mark.parametrize(
    ("manner", "durability", "times"),
    [("busy", "off", 300), ("waiting", "off", 300), ("waiting", "full", 100)],
)
def test_no_interrupt_strands_a_task(db: Path, manner: str, durability: str, times: int) -> None:
    """The main thread takes and acks while signals rain on it: it holds only what it was given, and goes on."""
    check_stress(run(STRESS, db, manner, durability, times, 20), times)


def check_stress(printed: str, times: int) -> None:
    """All signals were caught, or at least a tenth on a slow machine; no task was stranded; the counts agree."""
    counts, agree = printed.splitlines()
    caught, unknown = map(int, counts.split())
    assert times / 10 <= caught <= times and unknown == 0 and agree == "True", printed


BETWEEN = """
import os, signal, sys, tubes
from tubes import interrupts
queue = tubes.connect("sqlite:///" + sys.argv[1])
tube = queue.create_tube("jobs", "fifo")
tube.put_many(range(3))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
strikes, noted, set_handler = [], [], interrupts.signal
signal.signal(signal.SIGUSR1, lambda number, frame: noted.append(number))

def strike(number, handler):
    other = signal.SIGINT if number == signal.SIGTERM else signal.SIGTERM
    is_second = handler is signal.getsignal(other) is signal.default_int_handler
    if is_second and not strikes:
        strikes.append(number)
        signal.raise_signal(signal.SIGUSR1)
        os.kill(os.getpid(), other)
    return set_handler(number, handler)

interrupts.signal = strike
try:
    tube.take(timeout=0)
except KeyboardInterrupt:
    print("interrupted")
print(len(strikes))
print([signal.getsignal(number) is signal.default_int_handler for number in (signal.SIGINT, signal.SIGTERM)])
print(len(tube.tasks("t")))
strikes.clear()
noted.clear()
try:
    interrupts.guarded(int)
except KeyboardInterrupt:
    print("interrupted", len(noted))
"""


def test_a_signal_between_the_two_handlers_leaves_neither_noting(db: Path) -> None:
    """One signal has its own handler back, and that raises just before the other's is put back.

    The handler of a third signal, noted before that, is called all the same.
    """
    assert run(BETWEEN, db).splitlines() == ["interrupted", "1", "[True, True]", "0", "interrupted 1"]


WAITING = """
import signal, sys, threading, time, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1])
tube = queue.create_tube("jobs", "fifo", if_not_exists=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[2] == "TERM":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
def tell():
    while not queue.store.waiters.count(tube.record.id):
        time.sleep(0.001)
    time.sleep(0.05)
    print("waiting", flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    tube.take(timeout=None)
except KeyboardInterrupt:
    tube.put("after")
    print(tube.take(timeout=0).data)
    sys.exit(2)
"""


@pytest.mark.parametrize(("name", "status"), [("INT", 2), ("TERM", 3)])
def test_a_signal_ends_a_waiting_take_at_once(
    db: Path, process: Callable[..., Any], name: str, status: int
) -> None:
    """The handler runs during the wait, not after it; the process goes on, or ends in good order."""
    worker = process(WAITING, db, name)
    assert heard(worker) == "waiting"
    worker.send_signal(getattr(signal, f"SIG{name}"))
    assert worker.wait(20) == status  # nothing else would end it
    if name == "INT":
        assert heard(worker) == "after"


def test_a_signal_whose_handler_does_not_raise_leaves_the_take_waiting(
    db: Path, process: Callable[..., Any]
) -> None:
    """A handler that only makes a note of the signal does so at once, and the take goes on waiting."""
    code = WAITING.replace(
        "try:", "signal.signal(signal.SIGINT, lambda number, frame: print('noted', flush=True))\ntry:"
    ).replace("tube.take(timeout=None)", "print(tube.take(timeout=None).data, flush=True)")
    worker = process(code, db, "INT")
    assert heard(worker) == "waiting"
    worker.send_signal(signal.SIGINT)
    assert heard(worker) == "noted"
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.tube.jobs.put("came")
        assert heard(worker) == "came"


def test_a_signal_that_comes_while_another_is_handled_ends_the_take_too(
    db: Path, process: Callable[..., Any]
) -> None:
    """As when SIGTERM reaches a program that is reaping its children. The take would otherwise wait for ever."""
    code = WAITING.replace(
        "try:",
        "signal.signal(signal.SIGINT, lambda number, frame: signal.raise_signal(signal.SIGTERM))\ntry:",
    )
    worker = process(code, db, "TERM")
    assert heard(worker) == "waiting"
    worker.send_signal(signal.SIGINT)
    assert worker.wait(10) == 3


def test_a_signal_that_comes_often_in_one_call_is_handled_once() -> None:
    """As one that comes often while it is pending. Each used to be handled, one in the other, on one stack."""
    handled: list[int] = []

    def raise_often() -> None:
        for _ in range(sys.getrecursionlimit()):
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, lambda number, frame: handled.append(number))
    try:
        for _ in range(2):
            guarded(raise_often)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert handled == [signal.SIGALRM] * 2


def test_a_handler_may_set_another_for_the_next_signal(connect: Connect) -> None:
    """Say, to let a second Ctrl-C end the program at once. If set in a wait, it still stays after the call."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")

    def handle(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        queue.close()

    def tell() -> None:
        eventually(lambda: queue.store.waiters.count(tube.record.id) == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    teller = threading.Thread(target=tell)
    try:
        teller.start()
        assert tube.take(timeout=30) is None
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
        teller.join()


@pytest.mark.parametrize("is_called", [True, False], ids=["called by another", "put back"])
def test_the_handler_that_a_callback_finds_is_still_one_after_the_call(
    connect: Connect, is_called: bool
) -> None:
    """A handler set there calls the one before it; a debugger puts that back at its next prompt, wherever it is."""
    handled: list[str] = []
    found: list[Any] = []

    def other(number: int, frame: Any) -> None:
        handled.append("other")
        if is_called:
            found[0](number, frame)

    def set_other(task: tubes.Task, event: tubes.Event) -> None:
        if not found:
            found.append(signal.signal(signal.SIGUSR1, other))

    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append("first"))
    try:
        tube = connect(sweep=False).create_tube("jobs", "fifo", on_task_change=set_other)
        tube.put(1)
        assert signal.getsignal(signal.SIGUSR1) is other
        tube.put(2)  # from now on calls note the signal for the other
        if not is_called:
            signal.signal(signal.SIGUSR1, found[0])
        expected = ["other", "first"] if is_called else ["first"]
        signal.raise_signal(signal.SIGUSR1)
        assert handled == expected
        guarded(signal.raise_signal, signal.SIGUSR1)
        assert handled == 2 * expected
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_may_close_the_queue(db: Path, process: Callable[..., Any]) -> None:
    """A SIGTERM handler that closes the queue ends the take, which then returns nothing."""
    code = WAITING.replace(
        "lambda number, frame: sys.exit(3)", "lambda number, frame: queue.close()"
    ).replace("tube.take(timeout=None)", "print(tube.take(timeout=None), flush=True)")
    worker = process(code, db, "TERM")
    assert heard(worker) == "waiting"
    worker.send_signal(signal.SIGTERM)
    assert heard(worker) == "None"
    assert worker.wait(10) == 0


IN_THE_MIDDLE = """
import os, signal, sys, threading, time, tubes
path, durability, stands_in_line = *sys.argv[1:3], sys.argv[3] == "True"
queue = tubes.connect("sqlite:///" + path, durability=durability)
tube = queue.create_tube("jobs", "fifo")

def handle(number, frame):
    try:
        tube.put("from the handler")
    except tubes.StoreBusy as error:
        print("handler" in str(error), flush=True)
    queue.close()
    print("closed", flush=True)

signal.signal(signal.SIGTERM, handle)
tube.put("there is a count to store")
print("ready", flush=True)
sys.stdin.readline()
threading.Timer(0.15, queue._sweeper.nudge, (0.0,)).start()
if stands_in_line:
    threading.Thread(target=tube.put, args=("from a thread",)).start()
    time.sleep(0.1)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
print(tube.put("from the main thread").data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["off", "full"])
@pytest.mark.parametrize("stands_in_line", [False, True])
def test_a_handler_that_calls_in_the_middle_of_a_call_is_not_waited_for_by_itself(
    db: Path, process: Callable[..., Any], durability: str, stands_in_line: bool
) -> None:
    """The interrupted call waits for the file's lock, or behind another thread that does; so does the sweep."""
    worker = process(IN_THE_MIDDLE, db, durability, stands_in_line)
    assert heard(worker) == "ready"
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tell(worker)
    assert [heard(worker), heard(worker)] == ["True", "closed"]
    other.execute("ROLLBACK")
    other.close()
    assert heard(worker) == "from the main thread"
    assert worker.wait(10) == 0


SHOWING = """
import collections, os, signal, sys, threading, time, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], durability="off")
tube = queue.create_tube("jobs", "fifo")
kept = tube.put("kept")
shown = []
number = getattr(signal, "SIG" + sys.argv[2])
signal.signal(number, lambda number, frame: shown.append(tube.statistics()["tasks"]["total"]))

def interrupt():
    while len(shown) < 40:
        os.kill(os.getpid(), number)
        time.sleep(0.005)  # real time: the calls that are to be interrupted go on

thread = threading.Thread(target=interrupt)
thread.start()
while thread.is_alive():
    tube.peek(kept)
    tube.delete(tube.put("x"))
    tube.tasks("t")
print({*shown} <= {1, 2})
queue.close()
"""


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_a_handler_may_look_at_any_moment(db: Path, name: str) -> None:
    """It reads the statistics through the connection that the interrupted call may be reading with."""
    assert run(SHOWING, db, name) == "True"


EMBEDDED = """
import _thread, sys

def work():
    import threading, tubes
    if sys.version_info < (3, 13):  # which knows the main thread from who imports first
        assert threading.current_thread() is threading.main_thread()
    with tubes.connect("sqlite:///" + sys.argv[1]) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        print(tube.ack(tube.take(timeout=1)).data, tube.take(timeout=0.01), flush=True)
    over.release()

assert "threading" not in sys.modules
over = _thread.allocate_lock()
over.acquire()
_thread.start_new_thread(work, ())
over.acquire(timeout=20)
"""


@pytest.mark.slow
def test_a_thread_that_only_seems_the_main_one_may_call(db: Path) -> None:
    """A program that embeds Python may import everything in another thread, where no signal handler can be set."""
    program = [sys.executable, "-c", EMBEDDED, str(db)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "x None\n", ended.stderr


def test_close_ends_waiting_takes_and_loses_nothing(connect: Connect) -> None:
    """Takes that wait in threads return when the queue is closed; what they took just then is ready again."""
    for _ in range(20):
        queue = connect()
        tube = queue.create_tube("jobs", "fifo", if_not_exists=True)
        got: list[tubes.Task | None] = []

        def consume(tube: tubes.Tube = tube, got: list[tubes.Task | None] = got) -> None:
            got.append(tube.take(timeout=None))

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda queue=queue, tube=tube: queue.store.waiters.count(tube.record.id) == 3)  # type: ignore[misc]
        tube.put_many([1, 2])
        queue.close()
        ended(*threads)
        assert len(got) == 3
        again = connect(sweep=False)
        left = again.tube.jobs
        assert left.statistics()["tasks"]["ready"] == 2
        left.truncate()
        again.close()


@pytest.mark.parametrize("how", ["call", "transaction"])
def test_a_signal_in_a_call_keeps_no_callback_from_hearing_of_it(connect: Connect, how: str) -> None:
    """Wherever its handler raises, every callback is told of each commit, if only with the next call."""
    queue = connect(sweep=False)
    tube, other = queue.create_tube("jobs", "fifo"), queue.create_tube("other", "fifo")

    def put_in_a_transaction(data: int) -> None:
        with queue.transaction() as unit:
            other.put(data, unit=unit)
            tube.put(data, unit=unit)

    put = tube.put if how == "call" else put_in_a_transaction
    told: list[object] = []
    tube.on_task_change(lambda task, event: told.append(task.data))
    tube.add_listener(lambda task, event: told.append(task.data))
    at = 1
    while strike(partial(put, at), at):
        at += 1
    assert at > 20
    assert Counter(told) == Counter(task.data for task in tube.tasks("r", limit=1000) for _ in range(2))
    assert tube.statistics()["calls"]["put"] == len(told) / 2


@pytest.mark.parametrize("how", ["call", "transaction"])
def test_a_handler_whose_own_call_to_a_store_fails_strands_no_task(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A take that fails with such an error of its own has noted what it may hold; this one has taken the task."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    take = tube.driver.take

    def fail(number: int, frame: object) -> None:
        raise tubes.StoreBusy("what the handler writes to is locked")

    def take_with_a_signal(*given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGALRM)
        return take(*given, **named)

    monkeypatch.setattr(tube.driver, "take", take_with_a_signal)
    before = signal.signal(signal.SIGALRM, fail)
    try:
        if how == "call":
            with pytest.raises(tubes.StoreBusy, match="handler"):
                tube.take(timeout=0)
        else:
            with queue.transaction() as unit, pytest.raises(tubes.StoreBusy, match="handler"):
                tube.take(timeout=0, unit=unit)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [task.data for task in tube.tasks("r")] == ["x"]


@pytest.mark.parametrize("step", ["count", "release_owner", "next_dues", "start"])
def test_an_alarm_is_not_taken_for_the_error_of_a_tube_among_others(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What is wrong with one tube alone keeps nobody from the others; an alarm is meant for the caller."""
    clock = FakeClock()
    queue = connect(sweep=False, clock=clock)
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("x")
    with connect(sweep=False, clock=clock, session_ttr=5) as other:
        assert other.tube.jobs.take(timeout=0) is not None
    clock.advance(5)
    calls: dict[str, Callable[[], object]] = {
        "count": queue.statistics,
        "release_owner": queue.rescuer.rescue,
        "start": partial(connect, sweep=False, clock=clock),
    }
    place: Any = queue.store if step == "next_dues" else type(tube.driver)
    do = getattr(place, step)

    def do_with_an_alarm(*given: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return do(*given, **named)

    def over(number: int, frame: object) -> None:
        raise TimeoutError("the work took too long")

    monkeypatch.setattr(place, step, do_with_an_alarm)
    before = signal.signal(signal.SIGALRM, over)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            calls.get(step, queue.sweep)()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_error_with_the_id_of_an_earlier_alarm_is_a_driver_s_own(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python gives a new error the id of one that is forgotten. Here it is the same one."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    error = TimeoutError("once an alarm")

    def fail(*_: object) -> Any:
        raise error

    tube.on_task_change(lambda task, event: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, fail)
    try:
        with pytest.raises(TimeoutError):
            tube.put("x")
        monkeypatch.setattr(tube.driver, "count", fail)
        assert queue.statistics() == {}
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_callback_may_time_out_twice(connect: Connect) -> None:
    """What the signal's handler raises is raised in the callback, both times, and not by the put."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    caught: list[BaseException] = []

    def handle(number: int, frame: object) -> None:
        raise TimeoutError

    def callback(task: tubes.Task, event: tubes.Event) -> None:
        for _ in range(2):
            try:
                signal.raise_signal(signal.SIGALRM)
            except TimeoutError as error:
                caught.append(error)

    tube.on_task_change(callback)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        tube.put("x")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(caught) == 2


@pytest.mark.parametrize("verb", ["truncate", "drop"])
def test_a_signal_leaves_nobody_waiting_for_room_that_was_made(verb: str) -> None:
    """Wherever its handler raises. In memory a waiting put never looks unless it is called."""
    clock = FakeClock()
    at, is_struck = 0, True
    with tubes.connect("sqlite://", sweep=False, clock=clock) as queue:
        while is_struck:
            at += 1
            tube = queue.create_tube("jobs", "limfifottl", capacity=1, if_not_exists=True)
            full = tube.put("full")
            waiter = Waiting(clock, tube.put, "late", timeout=60)
            is_struck = strike(getattr(tube, verb), at)
            with suppress(tubes.NoSuchTube):
                if full in tube.tasks("r"):
                    tube.truncate()
                assert waiter.end().data == "late"
                tube.truncate()
            waiter.thread.join(20)
            assert not waiter.thread.is_alive()
    assert at > 10


@pytest.mark.parametrize("verb", ["sweep", "statistics"])
def test_a_signal_loses_no_counts_and_locks_nobody_out_of_them(connect: Connect, verb: str) -> None:
    """Wherever its handler raises, the next statistics show all that was counted."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    at, is_struck = 0, True
    while is_struck:
        at += 1
        tube.put(at)
        is_struck = strike(partial(getattr(queue, verb)), at)
        assert tube.statistics()["calls"]["put"] == at
    assert at > 20


@pytest.mark.slow
def test_a_signal_in_a_change_of_the_session_leaves_it_whole(connect: Connect, db: Path) -> None:
    """Wherever its handler raises, the next put is stored, and the next take is held by a live session."""
    stored = sqlite3.connect(db, isolation_level=None)
    at, is_struck = 1, True
    while is_struck:
        queue, other = connect(sweep=False), connect(sweep=False)
        tube = queue.create_tube("jobs", "fifo", if_not_exists=True)
        strike(partial(queue.configure, session_ttr=60), at)
        is_struck = strike(partial(queue.identify, other.identify()), at)
        tube.put(at)
        assert stored.execute("SELECT count(*) FROM tubes_task WHERE state = 'r'").fetchone() == (1,), at
        task = take(tube)
        other.sweep()
        tube.ack(task)
        queue.close()
        other.close()
        at += 1 + at // 20
    stored.close()
    assert at > 20


@pytest.mark.timeout(60, method="thread")
def test_a_handler_closes_a_queue_that_sweeps(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the sweep holds what close needs: the handler waits until it no longer does."""
    queue = connect(sweep=False)
    store: Any = queue.store
    renew = store._locks.renew

    def struck() -> None:
        signal.raise_signal(signal.SIGUSR1)
        renew()

    monkeypatch.setattr(store._locks, "renew", struck)
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.close())
    try:
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            queue.sweep()
    finally:
        signal.signal(signal.SIGUSR1, before)


def check_close(connect: Connect, step: int) -> None:
    """Wherever a signal's handler raises in a close, what the queue held is ready again."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put("held")
    at, is_struck = 1, True
    while is_struck:
        queue = connect()
        assert queue.tube.jobs.take(timeout=0) is not None
        is_struck = strike(queue.close, at)
        queue.close()  # the first may not have begun
        task = tube.take(timeout=0)
        assert task is not None, at
        tube.release(task)
        at += step
    assert at > 20


@pytest.mark.slow
def test_a_close_that_a_signal_cuts_short_keeps_nothing(connect: Connect) -> None:
    check_close(connect, step=10)


def check_connect(connect: Connect, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler raises just after a connect starts one of its threads: none of them is left."""
    before, start, started = {*threading.enumerate()}, threading.Thread.start, 0

    def struck(thread: threading.Thread) -> None:
        nonlocal started
        start(thread)
        started += 1
        if started == at:
            signal.raise_signal(signal.SIGUSR1)

    def raise_struck(number: int, frame: object) -> None:
        raise Struck

    handler = signal.signal(signal.SIGUSR1, raise_struck)
    try:
        for at in range(1, threads + 1):
            started = 0
            with monkeypatch.context() as patch, pytest.raises(Struck):
                patch.setattr(threading.Thread, "start", struck)
                connect()
            assert not {*threading.enumerate()} - before, at
    finally:
        signal.signal(signal.SIGUSR1, handler)
    connect().create_tube("jobs", "fifo").put(1)


def test_a_connect_that_a_signal_cuts_short_leaves_nothing_open(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_connect(connect, 1, monkeypatch)


def test_a_session_that_a_signal_cuts_short_in_connect_ends(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process lives on, and so does its lock file, which another queue has open."""
    queue = quiet(connect)
    store: Any = type(queue.store)
    begin = store._begin_session

    def struck(self: Any) -> None:
        begin(self)
        signal.raise_signal(signal.SIGUSR1)

    def raise_struck(number: int, frame: object) -> None:
        raise Struck

    handler = signal.signal(signal.SIGUSR1, raise_struck)
    try:
        with monkeypatch.context() as patch, pytest.raises(Struck):
            patch.setattr(store, "_begin_session", struck)
            connect()
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert queue.store.deaths_suspected()
    queue.rescuer.rescue()
    with closing(sqlite3.connect(db)) as other:
        assert other.execute("SELECT id FROM tubes_session").fetchall() == [(queue.identify().hex,)]


def test_a_program_ends_though_a_thread_is_in_the_middle_of_a_transaction(db: Path) -> None:
    """The thread is a daemon. What the program held, the next one gets at once."""
    code = """
import sys, threading, time, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], busy_timeout=0.3)
tube = queue.create_tube("jobs", "fifo")
tube.put("held")
print(tube.take(timeout=0).data)
began = threading.Event()

def work():
    with queue.transaction() as unit:
        tube.put("never committed", unit=unit)
        began.set()
        time.sleep(1000)

threading.Thread(target=work, daemon=True).start()
began.wait()
"""
    assert run(code, db) == "held"
    with tubes.connect(f"sqlite:///{db}") as queue:
        task = queue.tube.jobs.take(timeout=0)
        assert task is not None and task.data == "held"
        assert queue.tube.jobs.take(timeout=0) is None


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_what_other_threads_do_until_the_end_of_a_close_is_counted(
    connect: Connect, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect(durability=durability, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    close = queue.store.close

    def put_and_close() -> None:
        other = threading.Thread(target=lambda: tube.put("late"))
        other.start()
        ended(other)
        close()

    monkeypatch.setattr(queue.store, "close", put_and_close)
    tube.put("early")
    queue.close()
    statistics = connect(sweep=False).tube.jobs.statistics()
    assert (statistics["tasks"]["ready"], statistics["calls"]["put"]) == (2, 2)


def test_a_closed_queue_says_so(connect: Connect) -> None:
    """Every verb of a closed queue raises StoreUnavailable, and closing it again is harmless."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    task = tube.put(1)
    queue.close()
    queue.close()
    given: dict[Any, dict[str, tuple[Any, ...]]] = {
        tube: {
            "put": (2,),
            "put_many": ([2],),
            "take": (0,),
            "take_many": (1, 0),
            **dict.fromkeys(("ack", "release", "bury", "delete", "peek"), (task,)),
            "ack_many": ([task],),
            "touch": (task, 1),
            "tasks": ("r",),
            **dict.fromkeys(("kick", "truncate", "release_all", "statistics", "drop"), ()),
        },
        queue: {
            "create_tube": ("more", "fifo"),
            **dict.fromkeys(("get_tube", "drop_tube"), ("jobs",)),
            **dict.fromkeys(("tubes", "records", "statistics", "identify", "sweep"), ()),
        },
    }
    for asked, verbs in given.items():
        awaited = vars(getattr(tubes.aio, type(asked).__name__))
        asking = {
            name for name, verb in awaited.items() if inspect.iscoroutinefunction(verb) and name[0] != "_"
        }
        assert verbs.keys() == asking - {"close", "configure", "run", "run_sync"}
        for name, arguments in verbs.items():
            with pytest.raises(tubes.StoreUnavailable, match="closed"):
                getattr(asked, name)(*arguments)
    with pytest.raises(tubes.StoreUnavailable, match="closed"):
        queue.configure(session_ttr=60)
    assert connect().tube.jobs.peek(task.id).data == 1
