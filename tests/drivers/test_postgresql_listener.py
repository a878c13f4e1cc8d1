"""Who is called on PostgreSQL when a task is put: one process for one task, and never nobody."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import eventually
from servers import conninfo
from tubes.drivers import looks
from tubes.drivers.looks import FEW
from tubes.drivers.sql import postgresql_listener
from tubes.drivers.sql.postgresql_listener import Listener
from tubes.drivers.sql.postgresql_wire import Refused, Wire

import tubes
from tubes.clock import Signal
from tubes.waiting import Waiters, room

TUBE, OTHER = 7, 8


class Process:
    """A process's listener, with a connection of its own, and the process's waiters."""

    def __init__(self, url: str, beat_every: float = 3600) -> None:
        wires: list[Wire] = []

        def connect() -> Wire:
            wires.append(Wire(conninfo(url), "the test's database", "off"))
            return wires[-1]

        self.listener = Listener(connect, "tubes", Waiters(), beat_every)
        self.waiters = self.listener.waiters
        self.waiters._on_wait = self.listener.on_wait
        self._signals: dict[int, Signal] = {}
        self.listener.start()
        with psycopg.connect(conninfo(url), autocommit=True) as db:
            # otherwise it hears seconds later who waits
            eventually(lambda: wires and is_listening(db, wires[-1]))

    def wait(self, tube: int = TUBE) -> None:
        self._signals[tube] = self.waiters.enter(tube)

    def leave(self, tube: int = TUBE) -> None:
        self.waiters.leave(tube, self._signals.pop(tube))

    def was_called(self, tube: int = TUBE) -> bool:
        _, is_called = self.waiters.heed(tube, self._signals[tube])
        return bool(is_called)

    def looks(self, tube: int = TUBE) -> bool:
        looks = self._signals[tube].wait(60)
        self._signals[tube].clear()
        return looks

    def knows(self, count: int) -> bool:
        return len(self.listener._waiting) == count

    def knows_who_waits_for(self, key: int, count: int = 1) -> bool:
        return sum(key in said.keys for said in self.listener._waiting.values()) == count


def is_listening(db: psycopg.Connection, wire: Wire) -> bool:
    last = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'idle' AND query LIKE 'LISTEN%%'"
    return db.execute(last, [wire.backend_pid]).fetchone() is not None


@pytest.fixture
def processes(postgres_db: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """Three processes; a look that one takes by itself now and then does not count as a call."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    made = [Process(postgres_db) for _ in range(3)]
    yield made
    for process in made:
        process.listener.stop()


def all_wait(waiting: Sequence[Process], putter: Process) -> None:
    """Let all wait for the same tube, until the putter has heard of it."""
    for process in waiting:
        process.wait()
    eventually(lambda: putter.knows(len(waiting)))


def called(*processes: Process, key: int = TUBE) -> list[int]:
    """Return which of these are called: wait for the first call, and then for one too many."""
    found: list[int] = []

    def look() -> bool:
        found.extend(place for place, process in enumerate(processes) if process.was_called(key))
        return bool(found)

    eventually(look)
    late = time.monotonic() + 0.1
    while time.monotonic() < late:
        look()
        time.sleep(0.002)  # real time: any further call comes from another thread
    return found


def test_one_task_calls_one_process_and_the_next_another(processes: list[Process]) -> None:
    putter, *waiting = processes
    all_wait(waiting, putter)
    putter.listener.notify(TUBE, 1)
    (first,) = called(*waiting)
    putter.listener.notify(TUBE, 1)
    assert called(*waiting) == [1 - first]


def test_several_tasks_call_everybody(processes: list[Process]) -> None:
    putter, *waiting = processes
    all_wait(waiting, putter)
    putter.listener.notify(TUBE, 2)
    assert sorted(called(*waiting)) == [0, 1]


def test_who_waits_for_another_tube_is_not_called(processes: list[Process]) -> None:
    putter, mine, theirs = processes
    theirs.wait(OTHER)
    mine.wait()
    eventually(lambda: putter.knows(2))
    for _ in range(2):
        putter.listener.notify(TUBE, 1)
        assert called(mine) == [0]
    assert not theirs.was_called(OTHER)


def test_who_does_not_wait_any_more_passes_the_call_on(processes: list[Process]) -> None:
    putter, gone, waiting = processes
    gone.wait()
    eventually(lambda: putter.knows(1))
    waiting.wait()
    eventually(lambda: putter.knows(2))
    gone.leave()
    putter.listener.notify(TUBE, 1)  # it is the first in line
    assert called(waiting) == [0]
    eventually(lambda: putter.knows_who_waits_for(TUBE))


def test_a_tube_for_which_nobody_has_said_to_wait_calls_everybody(processes: list[Process]) -> None:
    """A process that has begun to wait for it since its last announcement is heard of later."""
    putter, waiting, _ = processes
    waiting.wait(OTHER)
    eventually(lambda: putter.knows(1))
    waiting.wait()
    putter.listener.notify(TUBE, 1)
    assert called(waiting) == [0]


def test_who_begins_to_wait_for_room_says_so_and_is_called(processes: list[Process]) -> None:
    """Even if it announced a moment ago that it waits for something else; and that still holds."""
    acker, putter, _ = processes
    putter.wait()
    eventually(lambda: acker.knows_who_waits_for(TUBE))
    putter.wait(room(TUBE))
    eventually(lambda: acker.knows_who_waits_for(room(TUBE)))
    acker.listener.notify(room(TUBE), 2)
    assert called(putter, key=room(TUBE)) == [0]
    assert not putter.was_called()
    putter.leave(room(TUBE))
    putter.wait(room(OTHER))
    eventually(lambda: acker.knows_who_waits_for(room(OTHER)))
    assert acker.knows_who_waits_for(room(TUBE)) and acker.knows_who_waits_for(TUBE)


def test_room_for_which_nobody_has_said_to_wait_calls_nobody(processes: list[Process]) -> None:
    """Each ack makes room."""
    acker, waiting, _ = processes
    waiting.wait()
    eventually(lambda: acker.knows(1))
    acker.listener.notify(room(TUBE), 1)
    assert not acker.listener._calls


def test_who_does_not_wait_for_room_any_more_passes_the_call_on_once(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has stopped waiting may wait again at any moment, so it is called the next time, too."""
    acker, first, second = processes
    for count, process in enumerate((first, second), 1):
        process.wait(room(TUBE))
        eventually(partial(acker.knows_who_waits_for, room(TUBE), count))
    eventually(lambda: first.knows_who_waits_for(room(TUBE)))
    first.leave(room(TUBE))
    acker.listener.notify(room(TUBE), 1)
    assert called(second, key=room(TUBE)) == [0]
    second.leave(room(TUBE))
    sent: list[str] = []
    for process in (first, second):
        monkeypatch.setattr(process.listener, "_send", lambda wire, said, process: sent.append(said))
    acker.listener.notify(room(TUBE), 1)
    eventually(lambda: sent)
    assert sent == [f"{room(TUBE)} passed on"] and acker.knows_who_waits_for(room(TUBE), 2)


def test_a_call_for_room_is_passed_on_to_all_who_wait_for_it(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them may have stopped waiting, too."""
    acker, *others = processes
    for process in processes:
        process.wait(room(TUBE))
    eventually(lambda: all(process.knows_who_waits_for(room(TUBE), 2) for process in processes))
    sent: list[int] = []
    for process in others:
        process.leave(room(TUBE))
        monkeypatch.setattr(process.listener, "_send", lambda wire, said, process: sent.append(process))
    acker.listener.notify(room(TUBE), 1)
    eventually(lambda: len({*sent}) == 2)


def test_who_waits_again_after_nobody_did_looks_in_time(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has connected since this one last said that it waits calls nobody."""
    monkeypatch.setattr(postgresql_listener, "FLOOR", 0.05)
    waiting, *others = processes
    waiting.wait()
    eventually(lambda: all(other.knows(1) for other in others))
    waiting.leave()
    eventually(lambda: not waiting.listener._is_looking)  # it sleeps until the next beat
    for _ in range(2):
        waiting.wait()
        for _ in range(2):
            assert waiting.looks(), "it sleeps on"
        waiting.leave()


def test_who_said_so_long_ago_is_not_counted_on(processes: list[Process]) -> None:
    putter, silent, waiting = processes
    silent.wait()
    eventually(lambda: putter.knows(1))
    processes.remove(silent)
    silent.listener.stop()  # so that a call to it reaches nobody
    (process,) = putter.listener._waiting
    waiting.wait()
    eventually(lambda: putter.knows(2))
    known = putter.listener._waiting
    known[process] = known[process]._replace(heard_at=float("-inf"))
    putter.listener.notify(TUBE, 1)
    assert called(waiting) == [0]
    assert putter.knows(1)


def test_nobody_is_called_once_all_that_waited_have_been_silent(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each put would cost a notification for as long as the process lives."""
    putter, silent, _ = processes
    silent.wait()
    eventually(lambda: putter.knows(1))
    silent.leave()
    sent: list[str] = []
    monkeypatch.setattr(putter.listener, "_send", lambda wire, said: sent.append(said))

    def is_forgotten() -> bool:
        known = putter.listener._waiting
        known |= {process: said._replace(heard_at=float("-inf")) for process, said in known.items()}
        putter.listener.notify(TUBE, 2)
        return putter.knows(0)

    eventually(is_forgotten)
    eventually(lambda: not putter.listener._calls)
    sent.clear()
    putter.listener.notify(TUBE, 2)
    assert not putter.listener._calls and not sent


def test_who_never_puts_forgets_who_said_so_long_ago(
    processes: list[Process], postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a process that lives for long would remember all that ever waited."""
    waiting, *_ = processes
    idle = Process(postgres_db, beat_every=0.02)
    try:
        waiting.wait()
        eventually(lambda: idle.knows(1))
        waiting.leave()
        monkeypatch.setattr(postgresql_listener, "KNOWN_FOR", 0.05)
        eventually(lambda: idle.knows(0))
    finally:
        idle.listener.stop()


def test_a_queue_in_another_schema_is_not_called(postgres_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tubes have the same numbers; its waiters would be called for tasks that they do not see."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    places = [
        sa.make_url(postgres_db).update_query_dict({"options": f"-csearch_path={name}"})
        for name in ("red", "blue")
    ]
    urls = [place.render_as_string(hide_password=False) for place in places]
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        for schema in ("red", "blue"):
            db.execute(f"CREATE SCHEMA {schema} CREATE TABLE tubes_task ()".encode())
    processes = [Process(url) for url in (urls[0], urls[1], urls[0])]
    putter, other, waiting = processes
    try:
        for process in (other, waiting):
            process.wait()
        eventually(lambda: putter.knows(1))
        for _ in range(2):
            putter.listener.notify(TUBE, 1)
            assert called(other, waiting) == [1]
    finally:
        for process in processes:
            process.listener.stop()


def test_a_call_that_comes_with_the_answer_to_a_beat_is_heard(
    processes: list[Process], postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a call ends no poll, and here nobody looks by itself for an hour."""
    monkeypatch.setattr(postgresql_listener, "FLOOR", 3600.0)
    monkeypatch.setattr(postgresql_listener, "ANNOUNCE_EVERY", 3600.0)
    putter, waiting, _ = processes
    all_wait([waiting], putter)
    listener = waiting.listener
    eventually(lambda: listener._look_at > time.monotonic() + 3000)
    waiting.was_called()
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:

        def beat(wire: Wire) -> None:
            db.execute("SELECT pg_notify(%s, %s)", [listener._channel, str(TUBE)])
            wire.execute("SELECT pg_sleep(0.05)", ())

        listener.beats.add(beat)
        listener._beat_at = 0.0
        listener._wake_pipe.set()
        assert called(waiting) == [0]


def test_who_has_lost_his_connection_looks_and_says_again_that_he_waits(
    processes: list[Process], postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile nobody could call it, and its new connection has another number."""
    monkeypatch.setattr(postgresql_listener, "FLOOR", 3600.0)
    monkeypatch.setattr(postgresql_listener, "ANNOUNCE_EVERY", 3600.0)
    putter, waiting, _ = processes
    all_wait([waiting], putter)
    assert waiting.looks()
    (number,) = putter.listener._waiting
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s, 20000)", [number])
    eventually(lambda: putter.listener._waiting.keys() - {number})
    assert waiting.looks()


@pytest.mark.parametrize("said", ["²", "7" * 5000, "waiting ²"])
def test_what_somebody_else_says_on_the_channel_does_no_harm(
    processes: list[Process], postgres_db: str, said: str
) -> None:
    """Whoever may connect may say anything there."""
    putter, *waiting = processes
    all_wait(waiting, putter)
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        db.execute("SELECT pg_notify(%s, %s)", [putter.listener._channel, said])
    putter.listener.notify(TUBE, 2)
    assert sorted(called(*waiting)) == [0, 1]


def test_what_is_refused_again_and_again_is_said_once(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby refuses for as long as it is one; if it becomes one again, that is logged once more."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    refusals: list[float] = []
    monkeypatch.setattr(postgresql_listener, "pause", refusals.append)
    is_standby = threading.Event()
    is_standby.set()
    beats: list[Wire] = []

    def connect() -> Wire:
        wire = Wire(conninfo(postgres_db), "the test's database", "off")
        if is_standby.is_set():
            with pytest.raises(Refused):
                wire.simple("BEGIN; SELECT 1/0")
        return wire

    def beat(wire: Wire) -> None:
        if is_standby.is_set():
            wire.simple("SELECT 1/0")
        beats.append(wire)

    listener = Listener(connect, "tubes", Waiters(), 0.01)
    listener.beats.add(beat)
    listener.start()
    try:
        eventually(lambda: len(refusals) > 3)
        is_standby.clear()
        eventually(lambda: beats)
        assert len(caplog.records) == 1
        is_standby.set()
        seen = len(refusals)
        eventually(lambda: len(refusals) > seen + 3)
    finally:
        listener.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the listener was refused: current transaction is aborted, commands ignored until end of transaction block",
        "the listener was refused: division by zero",
        "the listener was refused: current transaction is aborted, commands ignored until end of transaction block",
    ]


def test_a_beat_that_is_refused_keeps_no_other_queue_of_the_process_from_beating(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    beats: Counter[int] = Counter()

    def beat(number: int, wire: Wire) -> None:
        wire.simple(f"SELECT 1 / {number % 2}")
        beats[number] += 1

    listener = Listener(
        lambda: Wire(conninfo(postgres_db), "the test's database", "off"), "tubes", Waiters(), 0.01
    )
    listener.beats |= {partial(beat, number) for number in range(10)}
    listener.start()
    try:
        eventually(lambda: [beats[number] > 1 for number in range(10)] == [False, True] * 5)
    finally:
        listener.stop()


def test_of_the_queues_of_a_process_any_may_be_closed_while_another_waits(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a listener, whichever was opened first. It ends with the last."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    with (
        tubes.connect(postgres_db, migrate=True, sweep=False) as first,
        tubes.connect(postgres_db, sweep=False) as queue,
        ExitStack() as stack,
    ):
        putter = Process(postgres_db).listener
        stack.callback(putter.stop)
        listener, waiters = cast("Any", queue.store)._listener, queue.store.waiters
        assert cast("Any", first.store)._listener is listener
        signal = waiters.enter(TUBE)
        eventually(lambda: putter._waiting)
        first.close()
        putter.notify(TUBE, 1)
        eventually(lambda: waiters.heed(TUBE, signal)[1])
        waiters.leave(TUBE, signal)
        queue.close()
        assert not listener._thread.is_alive()


@pytest.mark.parametrize("is_temporary", [False, True])
def test_among_many_lines_they_look_where_a_task_is_ready(
    postgres_queue_url: str, monkeypatch: pytest.MonkeyPatch, is_temporary: bool
) -> None:
    monkeypatch.setattr(looks, "SOME", 0)  # nobody looks by turns
    with tubes.connect(postgres_queue_url, sweep=False) as queue:
        made = [
            queue.create_tube(f"tube{number}", "fifo", temporary=is_temporary) for number in range(3 * FEW)
        ]
        waiters = queue.store.waiters
        signals = {tube.record.id: waiters.enter(tube.record.id) for tube in made}
        *others, last = signals
        table = "tubes_temporary_task" if is_temporary else "tubes_task"
        columns = "tube, state, front, pri, place, created_ms, updated_ms, attempts, data"
        url = sa.make_url(postgres_queue_url).difference_update_query(["dead_after"])
        with psycopg.connect(conninfo(url.render_as_string(hide_password=False)), autocommit=True) as db:
            db.execute(
                f"INSERT INTO {table} ({columns}) VALUES ({last}, 'r', 1, 0, 0, 0, 0, 0, '1')".encode()
            )
        eventually(lambda: signals[last].is_set)
        assert sum(signals[id].is_set for id in others) <= FEW
        for tube in made:
            waiters.leave(tube.record.id, signals[tube.record.id])
            tube.drop()


FULL = """
CREATE SCHEMA full_queue;
CREATE FUNCTION full_queue.pg_notify(channel text, payload text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'too many notifications in the NOTIFY queue';
END $$
"""


def test_who_waits_looks_by_himself_where_the_server_takes_no_notifications(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue of notifications fills up if a listener's transaction takes too long. It is logged once."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 0.0)
    monkeypatch.setattr(postgresql_listener, "ANNOUNCE_EVERY", 0.05)
    monkeypatch.setattr(postgresql_listener, "FLOOR", 0.05)
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        db.execute(FULL)
    search_path = {"options": "-csearch_path=full_queue,public,pg_catalog"}
    url = sa.make_url(postgres_db).update_query_dict(search_path).render_as_string(hide_password=False)
    waiting = Process(url)
    try:
        waiting.wait()
        assert [waiting.looks() for _ in range(3)] == [True] * 3
    finally:
        waiting.listener.stop()
    assert [record.getMessage().partition("\n")[0] for record in caplog.records] == [
        "waiters cannot be called: too many notifications in the NOTIFY queue"
    ]
