"""Which connections are taken for dead by the beats seen, on a clock that the tests advance."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from servers import conninfo
from tubes.drivers import watch
from tubes.drivers.sql.postgresql_wire import Refused
from tubes.drivers.watch import Beats, Watch

import tubes


class Clock:
    """The time that ``real_monotonic`` returns."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "real_monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize("away", [4.0, 9.0, 10.1, 12.0, 14.9, 100.0])
def test_a_server_that_was_away_kills_nobody(clock: Clock, away: float) -> None:
    """The observer was the first to come back; the other was about to beat when the server went."""
    beats: Beats[str] = Beats(15.0)
    for _ in range(2):
        assert beats.see({"other": 1}, {}) == []
        clock.now += 4.99
    assert beats.see({"other": 2}, {}) == []
    clock.now += 4.99
    assert beats.see({"other": 2}, {}) == []
    clock.now += away
    assert beats.see({"other": 2}, {}) == []
    clock.now += 0.5
    assert beats.see({"other": 3}, {}) == []


def test_who_is_silent_while_others_are_heard_is_dead(clock: Clock) -> None:
    beats: Beats[str] = Beats(15.0)
    for beat in range(4):
        assert beats.see({"other": 1, "third": beat}, {}) == []
        clock.now += 5.0
    clock.now += 0.1
    assert beats.see({"other": 1, "third": 4}, {}) == [("other", 1)]


def test_whose_dead_after_is_longer_is_given_that(clock: Clock) -> None:
    """While a queue's processes are restarted with another ``dead_after``, old and new both live."""
    beats: Beats[str] = Beats(3.0)
    silent, every = {"patient": 1, "hasty": 1}, {"patient": 20.0, "hasty": 0.1}
    watch: Watch[str] = Watch(beats, lambda tx: beats.see(silent, every), "mine")
    assert [watch.is_alive(None, who) for who in silent] == [False, False]
    assert watch.until() == clock.now + 60.0
    dead_at: dict[str, float] = {}
    for half in range(140):
        for who, _ in beats.see(silent, every):
            dead_at.setdefault(who, half / 2)
        clock.now += 0.5
    assert dead_at == {"hasty": 3.5, "patient": 60.5}
    silent["patient"] = 2
    beats.see(silent, every)
    clock.now += 1.9
    beats.see(silent, every)
    late: Watch[str] = Watch(beats, lambda tx: beats.see(silent, every), "mine")
    assert late.is_alive(None, "patient")  # its next beat is due much later


def test_a_doctor_knows_who_lives_by_a_beat_and_asks_no_second_one_before_it_is_due(clock: Clock) -> None:
    beats: Beats[str] = Beats(15.0)
    stored = {"other": 1, "third": 1}

    def lives() -> tuple[bool, float]:
        """What a new look of a doctor's tells."""
        watch: Watch[str] = Watch(beats, lambda tx: beats.see(stored, {}), "mine")
        return watch.is_alive(None, "other"), max(watch.until() - clock.now, 0.0)

    watch: Watch[str] = Watch(beats, lambda tx: beats.see(stored, {}), "mine")
    assert [watch.is_alive(None, who) for who in ("mine", "other", "third")] == [True, False, False]
    assert watch.until() == clock.now + 15.0
    clock.now += 4.0
    stored["other"] = 2
    assert [watch.is_alive(None, who) for who in ("other", "third")] == [True, False]
    assert watch.until() == clock.now + 11.0
    assert lives() == (True, 0.0)
    clock.now += 5.0
    assert lives() == (True, 0.0)
    clock.now += 0.25
    assert lives() == (False, 15.0)
    stored["other"] = 3
    assert lives() == (True, 0.0)


def test_a_doctor_goes_by_a_beat_that_its_own_process_has_seen_meanwhile(clock: Clock) -> None:
    """A connection that has beaten since the doctor asked lives, though its next beat is late."""
    beats: Beats[str] = Beats(15.0)
    stored = {"other": 1}
    watch: Watch[str] = Watch(beats, lambda tx: beats.see(stored, {}), "mine")
    assert not watch.is_alive(None, "other")
    clock.now += 4.0
    stored["other"] = 2
    beats.see(stored, {})
    clock.now += 6.0
    assert watch.is_alive(None, "other")


def test_a_doctor_that_stood_still_meanwhile_waits_anew(clock: Clock) -> None:
    """So may all others have done: by the time it goes on, nobody can have beaten, though much time is gone."""
    beats: Beats[str] = Beats(15.0)
    stored = {"other": 1}
    watch: Watch[str] = Watch(beats, lambda tx: beats.see(stored, {}), "mine")
    assert not watch.is_alive(None, "other")
    clock.now += 12.0
    assert not watch.is_alive(None, "other")
    assert watch.until() == clock.now + 15.0
    clock.now += 5.0
    assert not watch.is_alive(None, "other")
    assert watch.until() == clock.now + 10.0
    stored["other"] = 2
    clock.now += 0.1
    assert watch.is_alive(None, "other")


def test_a_doctor_that_asks_of_many_at_once_looks_once(clock: Clock) -> None:
    beats: Beats[int] = Beats(15.0)
    looks: list[float] = []

    def look(tx: Any) -> None:
        looks.append(clock.now)
        beats.see(dict.fromkeys(range(100), len(looks)), {})

    watch: Watch[int] = Watch(beats, look, -1)
    assert not any([watch.is_alive(None, connection) for connection in range(100)])
    assert len(looks) == 1
    clock.now += 0.1
    assert all([watch.is_alive(None, connection) for connection in range(100)])
    assert len(looks) == 2
    assert not watch.is_alive(None, 100)  # it may have begun since
    assert len(looks) == 3


def test_a_server_that_is_not_to_be_written_to_kills_nobody(clock: Clock, postgres_db: str) -> None:
    """Nobody can beat then, but looks at the beats are answered, as when the disk is full."""
    with (
        tubes.connect(postgres_db, migrate=True, sweep=False),
        tubes.connect(postgres_db, sweep=False) as queue,
        psycopg.connect(conninfo(postgres_db), autocommit=True) as db,
    ):
        store: Any = queue.store
        db.execute("REVOKE UPDATE ON tubes_connection FROM CURRENT_USER")
        for _ in range(5):
            clock.now += 5.0
            with pytest.raises(Refused, match="permission denied"), store._pool.lent() as wire:
                store._beat(wire)
            assert not store.deaths_suspected()
