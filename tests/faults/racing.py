"""Races: threads and processes work on one tube with every verb, and what each of them held is compared afterwards.

The tube's own idea of who holds what is not asked. A racer notes, by the machine's monotonic clock, when it had a
task: after its take returned, until before the call that gives it up. No two of these spans may overlap, for one task
or for one sub-queue. The racers replace what they remove, so that sub-queues stay nearly empty: if one task leaves
while another comes, a missing lock shows.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import tubes

THREADS, PROCESSES = 16, 8

BRIEF = 0.1
"""The ttr of some tasks, in seconds. Their holders dawdle until it is over."""

MARGIN = 0.04
"""Seconds by which the clocks of a lease may be wrong: the server's offset is measured, and rounded to ms."""


@dataclass(frozen=True)
class Hold:
    """A task in somebody's hands. All times are seconds of the monotonic clock."""

    who: str
    id: int
    token: int | None
    utube: str | None
    asked: float
    """When the holder began to ask for a task, maybe with several takes."""
    called: float
    """Before the take that got it."""
    begin: float
    """When the holder had the task."""
    end: float
    """Before the call that gave it up."""
    until: float
    """When its ttr is over."""
    back: float
    """When that call had returned."""
    how: str
    """How the task was given up."""
    is_lost: bool = False
    """Whether that call was refused, as the task was no longer held."""


@dataclass(frozen=True)
class Act:
    """What a racer did to a task that it does not hold: ``put``, or ``bury`` or ``delete`` by its id."""

    how: str
    id: int
    called: float
    returned: float


TIMES_ENOUGH = 50
"""Average holds per racer from which a racer without any was starved. Short races on busy machines have fewer."""


@dataclass
class Notes:
    """What racers have done."""

    holds: list[Hold] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)

    def add(self, others: Iterable[Notes]) -> None:
        """Take in what others noted."""
        for other in others:
            self.holds += other.holds
            self.acts += other.acts


class Racer:
    """Takes, works and gives up, in every way there is, until the time is over."""

    def __init__(self, who: str, tube: tubes.Tube, *, owed: int, groups: int) -> None:
        self.notes = Notes()
        self.who = who
        self._groups = groups
        self._tube = tube
        self._owed = owed
        self._dice = random.Random()
        self._mine: deque[int] = deque(maxlen=6)
        self._asked = self._called = 0.0

    def run(self, until: float) -> None:
        """Race until then, by the monotonic clock."""
        task: tubes.Task | None = None
        while task is not None or time.monotonic() < until:
            if task is None:
                self._put()
                self._meddle()
                task = self._take()
            else:
                task = self._work(task, is_last=time.monotonic() >= until)

    def _put(self) -> None:
        """Replace what was removed, so that the number of tasks stays the same; be impatient if there is no room."""
        features, dice = self._tube.features, self._dice
        while self._owed:
            options: dict[str, Any] = {}
            if features.grouped:
                options["utube"] = str(dice.randrange(self._groups))
            if features.priority:
                options["pri"] = dice.randrange(3)
            if features.timed and dice.random() < 0.1:
                options["delay"] = dice.random() * 0.03
            if features.timed and dice.random() < 0.04:
                options["ttr"] = BRIEF
            if features.bounded:
                options["timeout"] = 0.02
            called = time.monotonic()
            try:
                id = self._tube.put(self.who, **options).id
            except tubes.TubeFull:
                return
            self.notes.acts.append(Act("put", id, called, time.monotonic()))
            self._mine.append(id)
            self._owed -= 1

    def _meddle(self) -> None:
        """Kick buried tasks; now and then bury or delete one that another racer may have in hand."""
        choice = self._dice.random()
        if choice < 0.15:
            self._tube.kick(2)
        elif choice < 0.18 and self._mine:
            id, how = self._dice.choice(self._mine), self._dice.choice(("bury", "delete"))
            called = time.monotonic()
            try:
                getattr(self._tube, how)(id)
            except tubes.TaskNotFound:
                return
            self.notes.acts.append(Act(how, id, called, time.monotonic()))
            self._owed += how == "delete"

    def _take(self) -> tubes.Task | None:
        self._ask()
        return self._tube.take(timeout=self._dice.choice((0, 0.3, 0.3)))

    def _ask(self) -> None:
        self._called = time.monotonic()
        self._asked = self._asked or self._called

    def _work(self, task: tubes.Task, *, is_last: bool) -> tubes.Task | None:
        """Hold a task for a moment, then give it up; return the one taken with the ack."""
        begin, until = time.monotonic(), _lease(task)
        asked, called, self._asked = self._asked, self._called, 0.0
        how, following = self._way(task, is_last=is_last), None
        end, is_lost = begin, False
        try:
            if how == "touch":
                end = time.monotonic()
                until = _lease(self._tube.touch(task, 1.0) or task)
                how = "ack"
            if task.ttr == BRIEF and task.attempts == 1:
                time.sleep(BRIEF * 1.5)
            elif self._dice.random() < 0.6:
                time.sleep(self._dice.random() * 0.003)
            end = time.monotonic()
            following = self._give_up(task, how)
        except (tubes.NotTaken, tubes.TaskNotFound):
            is_lost = True
        back = time.monotonic()
        self.notes.holds.append(
            Hold(
                self.who,
                task.id,
                task.token,
                task.utube,
                asked,
                called,
                begin,
                end,
                until,
                back,
                how,
                is_lost,
            )
        )
        if how in ("ack", "ack and take", "delete") and not is_lost:
            self._owed += 1
        return following

    def _way(self, task: tubes.Task, *, is_last: bool) -> str:
        choice, timed = self._dice.random(), self._tube.features.timed
        if choice < 0.1 and not is_last:
            return "ack and take"
        if choice < 0.2:
            return "release"
        if choice < 0.25 and timed:
            return "delay"
        if choice < 0.33:
            return "bury"
        if choice < 0.38:
            return "delete"
        if choice < 0.43 and timed:
            return "touch"
        return "ack"

    def _give_up(self, task: tubes.Task, how: str) -> tubes.Task | None:
        tube = self._tube
        if how == "ack and take":
            self._ask()
            return tube.take(timeout=0, ack=task)
        if how == "delay":
            tube.release(task, delay=self._dice.random() * 0.03)
        else:
            getattr(tube, how)(task)
        return None


def _lease(task: tubes.Task) -> float:
    """When its time is over, on the monotonic clock."""
    if task.due_at is None:
        return float("inf")
    return time.monotonic() + (task.due_at - datetime.now(UTC)).total_seconds()


@dataclass(frozen=True)
class Verdict:
    """A race in numbers."""

    racers: int
    puts: int
    holds: int
    lost: int
    fewest: int
    """Holds of the racer that had the fewest."""
    longest_wait: float
    """The longest time, in seconds, for which a racer asked for a task."""
    most_stored: int
    """The most tasks that were surely stored at the same moment."""

    def __str__(self) -> str:
        return (
            f"{self.racers} racers put {self.puts} tasks and held them {self.holds} times, {self.lost} of them too "
            f"long; the fewest for one was {self.fewest}, the longest wait {self.longest_wait:.2f} s, the most "
            f"stored at once {self.most_stored}"
        )


def judge(notes: Notes, racers: Sequence[str], *, capacity: int = 0, are_called: bool = True) -> Verdict:
    """Check what racers noted, from the first put until all was drained.

    Racers that are not called when a task is there get one only by chance, so one without any was not starved.
    """
    holds, meddled = notes.holds, defaultdict(list)
    for act in notes.acts:
        if act.how != "put":
            meddled[act.id].append(act)
    leases = Counter((hold.id, hold.token) for hold in holds)
    twice = [lease for lease, times in leases.items() if times > 1]
    assert not twice, f"one lease, two holders: {twice[:5]}"

    _check_apart(holds, lambda hold: hold.id, meddled, "task")
    _check_apart(
        [hold for hold in holds if hold.utube is not None], lambda hold: hold.utube, meddled, "sub-queue"
    )
    for hold in holds:
        if hold.is_lost and hold.back < hold.until - MARGIN:
            by_others = [
                act for act in meddled[hold.id] if act.returned >= hold.called and act.called <= hold.back
            ]
            assert by_others, f"taken away before its time: {hold}"

    ends = Counter(hold.id for hold in holds if _removes(hold))
    ends.update(act.id for act in notes.acts if act.how == "delete")
    removed_twice = [id for id, times in ends.items() if times > 1]
    assert not removed_twice, f"done twice: {removed_twice[:5]}"
    stored = {act.id for act in notes.acts if act.how == "put"}
    assert ends.keys() == stored, f"lost: {sorted(stored - ends.keys())[:5]}"
    most_stored = _most_stored(notes)
    assert not capacity or most_stored <= capacity, f"{most_stored} tasks at once, {capacity} are allowed"
    shares = Counter(hold.who for hold in holds)
    starved = [who for who in racers if not shares[who]]
    is_long = are_called and len(holds) >= TIMES_ENOUGH * len(racers)
    assert not starved or not is_long, f"of {len(holds)} holds these got nothing: {starved}"
    return Verdict(
        len(racers),
        len(stored),
        len(holds),
        sum(hold.is_lost for hold in holds),
        min(shares[who] for who in racers),
        max(hold.begin - hold.asked for hold in holds),
        most_stored,
    )


def _removes(hold: Hold) -> bool:
    return hold.how in ("ack", "ack and take", "delete") and not hold.is_lost


def _check_apart(
    holds: Iterable[Hold], key: Callable[[Hold], Any], meddled: dict[int, list[Act]], what: str
) -> None:
    """Check that no two holds overlap, up to the end of the ttr, or until a racer buried or deleted the task."""
    spans = defaultdict(list)
    for hold in holds:
        interferences = [act.called for act in meddled[hold.id] if act.returned >= hold.called]
        end = min([hold.end, hold.until - MARGIN, *interferences])
        if end >= hold.begin:
            spans[key(hold)].append((hold.begin, end, hold))
    for name, group in spans.items():
        group.sort(key=lambda span: span[:2])
        for (_, end, one), (begin, _, other) in pairwise(group):
            assert end < begin, f"{what} {name!r} in two hands: {one}, {other}"


def _most_stored(notes: Notes) -> int:
    """The most tasks that were stored at any moment, at least: put by then, and their removal not yet begun."""
    steps = [(act.returned, 1) for act in notes.acts if act.how == "put"]
    steps += [(act.called, -1) for act in notes.acts if act.how == "delete"]
    steps += [(hold.end, -1) for hold in notes.holds if _removes(hold)]
    stored = most = 0
    for _, change in sorted(steps):
        stored += change
        most = max(most, stored)
    return most


def race(
    url: str,
    type: str,
    seconds: float,
    *,
    threads: int = THREADS,
    processes: int = PROCESSES,
    are_called: bool = True,
    **settings: Any,
) -> Verdict:
    """Let that many race on a new tube, drain it, and judge. There are about half as many tasks as racers."""
    racers = threads + processes
    groups, capacity = racers // 3, racers * 5 // 12 if type == "limfifottl" else 0
    options: dict[str, Any] = {"capacity": capacity} if capacity else {}
    if type not in ("fifo", "utube"):
        options["ttr"] = 30
    with tubes.connect(url, **settings) as queue:
        tube = queue.create_tube("race", type, **options)
        others = [_Process(url, f"process {n}", n % 2, groups, settings) for n in range(processes)]
        mine = [Racer(f"thread {n}", tube, owed=n % 2, groups=groups) for n in range(threads)]
        try:
            for other in others:
                assert other.hear() == "ready"
            until = time.monotonic() + seconds
            for other in others:
                other.pipe.send(until)
            runs = [partial(racer.run, until) for racer in mine]
            _in_threads([*runs, partial(_watch, tube, until, groups)])
            notes = Notes()
            notes.add(racer.notes for racer in mine)
            notes.add(other.hear() for other in others)
        finally:
            for other in others:
                other.end()
        notes.holds += _drain(tube)
        tube.drop()
    names = [*(racer.who for racer in mine), *(other.who for other in others)]
    return judge(notes, names, capacity=capacity, are_called=are_called)


def race_enough(url: str, type: str, seconds: float, enough: int, **settings: Any) -> None:
    """Race until there were enough holds to show something: just once unless the machine is too busy."""
    holds = 0
    while holds <= enough:
        holds += race(url, type, seconds, threads=6, processes=3, **settings).holds


class _Process:
    """A racer in a process of its own, forked from one that has imported everything."""

    def __init__(self, url: str, who: str, owed: int, groups: int, settings: dict[str, Any]) -> None:
        self.who = who
        context = multiprocessing.get_context("forkserver")
        stores = ("redis.store", "sql.postgresql", "sql.sqlite")
        context.set_forkserver_preload([__name__, *(f"tubes.drivers.{store}" for store in stores)])
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_be_a_process, args=(url, who, owed, groups, settings, theirs))
        self._process.start()
        theirs.close()

    def hear(self) -> Any:
        """What the process says next; raises EOFError if it has failed."""
        return self.pipe.recv()

    def end(self) -> None:
        """End the process, and leave nothing of it."""
        self.pipe.close()
        self._process.join(20)
        self._process.kill()
        self._process.join()
        self._process.close()


def _be_a_process(
    url: str, who: str, owed: int, groups: int, settings: dict[str, Any], pipe: Connection
) -> None:
    with tubes.connect(url, **settings) as queue:
        racer = Racer(who, queue.tube.race, owed=owed, groups=groups)
        pipe.send("ready")
        racer.run(pipe.recv())
        pipe.send(racer.notes)


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _watch(tube: tubes.Tube, until: float, groups: int) -> None:
    """Check again and again that there are no more tasks than there may be."""
    most = tube.record.options.get("capacity", float("inf"))
    most_taken = groups if tube.features.grouped else float("inf")
    while time.monotonic() < until:
        tasks = tube.statistics()["tasks"]
        assert tasks["total"] <= most, f"{tasks}: {most} are allowed"
        assert tasks["taken"] <= most_taken, f"{tasks}: of {most_taken} sub-queues, one is in two hands"
        time.sleep(0.01)


def _drain(tube: tubes.Tube) -> Iterator[Hold]:
    """Take and ack what is left; nothing may be stuck."""
    deadline = time.monotonic() + 60
    while tube.statistics()["tasks"]["total"]:
        tube.kick(1000)
        asked = time.monotonic()
        task = tube.take(timeout=0.1)
        if task is None:
            assert asked < deadline, (
                f"stuck: {tube.statistics()['tasks']}, {[*tube.tasks('r')]}, {[*tube.tasks('t')]}"
            )
            continue
        begin = time.monotonic()
        tube.ack(task)
        yield Hold("drain", task.id, task.token, task.utube, asked, asked, begin, begin, begin, begin, "ack")
