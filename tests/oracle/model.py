"""A small model of Tarantool's queue with our departures: what each call does to tasks, sessions and waiters.

It plays a scenario beside the real queue. As long as nothing has parted our course from Tarantool's, it must
report what was recorded (after translation), which shows that the model is right; from a parting on, it alone
says what is expected. Whenever its own course may have left Tarantool's, it notes why in ``partings``. It
knows nothing of how tubes are built: time is an integer, everything else is in lists.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from oracle.outcome import Failed, Outcome, Seen, Stats, Step, Told

PUT_OPTIONS = {"fifo": set(), "utube": {"utube"}, "fifottl": {"pri", "ttl", "ttr", "delay"}}
PUT_OPTIONS["limfifottl"] = PUT_OPTIONS["fifottl"] | {"timeout"}
PUT_OPTIONS["utubettl"] = PUT_OPTIONS["fifottl"] | {"utube"}
TUBE_OPTIONS = {
    "fifo": set(),
    "utube": set(),
    "fifottl": {"pri", "ttl", "ttr"},
    "utubettl": {"pri", "ttl", "ttr"},
}
TUBE_OPTIONS["limfifottl"] = TUBE_OPTIONS["fifottl"] | {"capacity"}
DURATIONS = {"ttl", "ttr", "delay"}
TUBE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)

LONGEST = (2**53 - 1) // 1000
"""Seconds; no duration may be longer."""

LARGEST = 2**63 - 1
"""No other number may be larger."""

LONG_MS = 3_153_600
"""Tarantool treats all longer timeouts of waiters as equal."""

ABSENT = 10**6
"""Keys from here on belong to tasks that never existed."""

NAMELESS = "\0"
"""The sub-queue of tasks that were put without a name; no name is equal to it."""

CALLED = {
    "ack": {"delete", "wake"},
    "delete": {"delete", "wake"},
    "bury": {"bury", "wake"},
    "release": {"release", "wake"},
    "ttl": {"delete", "ttl", "wake"},
    "delay": {"delay", "delayed"},
}
"""Tarantool's names for an event and for what it may report of a neighbour, if they are not ours."""


def ms(seconds: float) -> int:
    """Seconds as whole milliseconds, rounded up, except for what floats add."""
    return math.ceil(round(seconds * 1000, 6))


@dataclass
class Item:
    """A stored task; a time of ``None`` is never."""

    key: int
    data: Any
    pri: int
    utube: str | None
    created: int
    ttl: int | None
    ttr: int | None
    state: str = "r"
    due: int | None = None
    back: int | None = None
    owner: int | None = None
    unwatched: bool = False

    @property
    def end(self) -> int | None:
        return None if self.ttl is None else self.created + self.ttl

    def seen(self) -> Seen:
        return Seen(self.key, self.state, self.data)


@dataclass
class Box:
    """A tube."""

    name: str
    type: str
    options: Mapping[str, Any]
    items: dict[int, Item] = field(default_factory=dict)
    keys: Iterator[int] = field(default_factory=count)
    calls: dict[str, int] = field(default_factory=lambda: Stats.zero().calls)
    listens: bool = True
    raises: frozenset[str] = frozenset()

    @property
    def grouped(self) -> bool:
        return self.type.startswith("utube")

    @property
    def timed(self) -> bool:
        return self.type.endswith("ttl")

    @property
    def capacity(self) -> int:
        return int(self.options.get("capacity", 0))

    def stats(self) -> Stats:
        stats = Stats({}, dict(self.calls))
        for word, code in (("ready", "r"), ("taken", "t"), ("buried", "!"), ("delayed", "~")):
            stats.tasks[word] = sum(item.state == code for item in self.items.values())
        stats.tasks["total"] = len(self.items)
        stats.tasks["done"] = sum(self.calls[event] for event in ("ack", "delete", "ttl"))
        return stats

    def next_item(self, now: int) -> Item | None:
        """The ready task that a take gets."""
        busy = {item.utube for item in self.items.values() if item.state == "t"} if self.grouped else set()
        free = [
            item
            for item in self.items.values()
            if item.state == "r" and item.utube not in busy and (item.end is None or item.end > now)
        ]
        return min(free, key=lambda item: (item.pri, item.key), default=None)

    def in_state(self, state: str) -> list[Item]:
        """The tasks in a state, in the order of a take."""
        return sorted(
            (item for item in self.items.values() if item.state == state),
            key=lambda item: (item.pri, item.key),
        )


@dataclass
class Waiter:
    """A take, or a put into a full tube, that waits."""

    label: str | None
    connection: int
    box: Box
    since: int
    timeout: int | None
    try_it: Callable[[], Any]
    puts: bool
    result: Any = None
    is_over: bool = False

    @property
    def is_in_front(self) -> bool:
        """Whether its step ends with it, and shows in order all that happened until then."""
        return self.label is None

    @property
    def deadline(self) -> int | None:
        return None if self.timeout is None else self.since + self.timeout

    def rank(self) -> tuple[int, int]:
        """Tarantool's order: the shortest timeout first, among long ones the oldest connection."""
        if self.timeout is None or self.timeout > LONG_MS:
            return LONG_MS + 1, self.connection
        return self.timeout, self.since

    def may_overtake(self, first: Waiter) -> bool:
        """Tell whether Tarantool may serve this one before another that came first.

        A put waiting for room looks now and then. A fiber's number tells one connection's long waits apart.
        """
        if self.puts or first.puts:
            return self.puts and first.puts
        return self.rank() < first.rank() or self.rank() == first.rank() > (LONG_MS,)


class Ending(NamedTuple):
    """A session without connections, and when it ends."""

    session: int
    at: int


class Model:
    """Plays one scenario."""

    def __init__(self) -> None:
        self.now = 0
        self.boxes: dict[str, Box] = {}
        self.partings: set[str] = set()
        self.cut_short: Counter[tuple[str, str]] = Counter()
        self.instants: list[int] = []
        self.waited = False
        self._numbers = count(1)
        self._connections: dict[str, int] = {}
        self._sessions = {0: 0}  # one more does what no session does
        self._names: dict[int, str] = {}
        self._named = count(1)
        self._sleeping: list[Ending] = []
        self._session_ttr = 0
        self._waiters: list[Waiter] = []
        self._out = Outcome()
        self._began = 0

    # Steps

    def perform(self, step: Step) -> Outcome:
        """Do what a step says; tell what it shows."""
        self._out, self._began = Outcome(), self.now
        self.instants, self.cut_short = [], Counter()
        name, connection = step["op"], 0
        if "s" in step:
            connection = self._connection(step["s"])
        result = getattr(self, f"do_{name}")(step, connection)
        self.waited = isinstance(result, Waiter)
        if "bg" in step:
            if not isinstance(result, Waiter):
                self._out.woke.append((step["bg"], result))
            result = None
        elif isinstance(result, Waiter):
            result = self._wait(result)
        self._settle()
        out = self._out
        out.result = result
        out.took = 0 if name == "sleep" else self.now - self._began
        out.is_sorted = name == "sleep"
        out.stats = self.stats()
        return out

    def finish(self) -> Outcome:
        """Let the background calls that are left end."""
        self._out, self._began = Outcome(is_sorted=True, took=None), self.now
        self.instants = []
        last = max((w.deadline for w in self._waiters if w.deadline is not None), default=self.now)
        self._pass_time(last)
        self._out.stats = self.stats()
        return self._out

    def stats(self) -> dict[str, Stats]:
        """Statistics of every tube."""
        return {name: box.stats() for name, box in self.boxes.items()}

    def box(self, step: Step) -> Box | None:
        """The tube that a step is about."""
        return self.boxes.get(step.get("tube", "t"))

    # Tubes

    def do_create(self, step: Step, connection: int) -> Any:
        options = step.get("opts") or {}
        if is_refused(step, None):
            self._note_overflow(options.get("ttl"), options.get("ttr"))
            known = known_options(step, None) or set()
            if any(is_nonsense(name, value) for name, value in options.items() if name in known):
                self.partings.add("a tube with a nonsensical option")
            box = self.boxes.get(stand_in(step["tube"]))
            if box is not None and not isinstance(options.get("if_not_exists", False), bool):
                self.partings.add("a tube set up once more")
            if box is None and str(step.get("err")).startswith("bad_"):
                self.partings.add("a creation that failed")
            return Failed("bad")
        if step["driver"] not in TUBE_OPTIONS:
            return Failed("unknown_type")
        self._note_null(options)
        box = self.box(step)
        if box is None:
            box = self.boxes[step["tube"]] = Box(step["tube"], step["driver"], options)
        elif not options.get("if_not_exists") or box.type != step["driver"]:
            return Failed("exists")
        return {"type": box.type}

    def do_drop(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        if any(waiter.box is box and not waiter.puts for waiter in self._waiters):
            return Failed("has_consumers")
        if box.in_state("t"):
            return Failed("has_taken")
        del self.boxes[box.name]
        for waiter in [waiter for waiter in self._waiters if waiter.box is box]:
            self._end(waiter, Failed("no_tube"))
        return True

    def do_exists(self, step: Step, connection: int) -> Any:
        return self.box(step) is not None

    def do_statistics(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        return Failed("no_tube") if box is None else box.stats()

    def do_set_callback(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        box.listens = step["mode"] == "record"
        box.raises = frozenset(step.get("raise_on", ()))
        return None

    # Tasks

    def do_put(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        options = step.get("opts") or {}
        if is_refused(step, box.type):
            if box.timed:
                self._note_overflow(options.get("ttl"), options.get("ttr"), options.get("delay"))
            if 0 < box.capacity <= len(box.items) and options.get("timeout"):
                self.partings.add("a bad put that waits for room")
            return Failed("bad")
        self._note_null(options)

        def try_it() -> Seen | None:
            if 0 < box.capacity <= len(box.items):
                return None
            return self._store(box, step.get("data"), options)

        return self._try(step, connection, box, try_it, options.get("timeout", 0), puts=True)

    def _store(self, box: Box, data: Any, options: Mapping[str, Any]) -> Seen:
        def duration(name: str, *defaults: Any) -> int | None:
            given = [options[name]] if name in options else [value for value in defaults if value is not None]
            return ms(given[0]) if given and given[0] is not None else None

        tube = box.options
        delay = ms(options.get("delay") or 0)
        ttl = duration("ttl", tube.get("ttl"))
        item = Item(
            key=next(box.keys),
            data=data,
            pri=options.get("pri", tube.get("pri", 0)),
            utube=_text(options.get("utube")) if box.grouped else None,
            created=self.now,
            ttl=None if ttl is None else ttl + delay,
            ttr=duration("ttr", tube.get("ttr"), tube.get("ttl")),
        )
        item.state, item.due = ("~", self.now + delay) if delay else ("r", item.end)
        box.items[item.key] = item
        names = {other.utube for other in box.items.values()}
        if {NAMELESS, "nil"} <= names or options.get("utube", "") is None:
            self.partings.add("a sub-queue named nil")
        self._tell(box, "put", item)
        return item.seen()

    def _note_overflow(self, *durations: Any) -> None:
        if any(_is_number(duration) and duration > LONGEST for duration in durations):
            self.partings.add("a duration that overflows")

    def _note_null(self, options: Mapping[str, Any]) -> None:
        if any(options.get(name, 0) is None for name in ("ttl", "ttr", "timeout")):
            self.partings.add("null for a duration")

    def do_take(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        timeout = step.get("timeout")
        if is_refused_value("timeout", timeout):
            self._note_overflow(timeout)
            return Failed("bad")

        def try_it() -> Seen | None:
            item = box.next_item(self.now)
            if item is None:
                return None
            item.state, item.owner, item.unwatched = "t", self._sessions[connection], False
            item.back = None if item.ttr is None else self.now + item.ttr
            item.due = min((end for end in (item.end, item.back) if end is not None), default=None)
            self._tell(box, "take", item)
            return item.seen()

        return self._try(step, connection, box, try_it, timeout, puts=False)

    def _held(self, step: Step, connection: int) -> Failed | tuple[Box, Item]:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        if not _is_id(step["id"]):
            return Failed("bad")
        item = box.items.get(step["id"])
        if item is None or item.state != "t" or item.owner != self._sessions[connection]:
            return Failed("not_taken")
        return box, item

    def do_ack(self, step: Step, connection: int) -> Any:
        held = self._held(step, connection)
        return held if isinstance(held, Failed) else self._remove(*held, "ack")

    def do_release(self, step: Step, connection: int) -> Any:
        delay = (step.get("opts") or {}).get("delay")
        box, held = self.box(step), self._held(step, connection)
        if box is not None and is_refused(step, box.type):
            if box.timed:
                self._note_overflow(delay)
            if box.timed and not (delay is None or _is_number(delay) or isinstance(held, Failed)):
                self.partings.add("a release that fails")
            return Failed("bad")
        if isinstance(held, Failed):
            return held
        box, item = held
        if not delay:
            return self._give_back(box, item)
        item.ttl = None if item.ttl is None else item.ttl + ms(delay)
        item.state, item.due, item.owner = "~", self.now + ms(delay), None
        self._tell(box, "release", item)
        return item.seen()

    def _give_back(self, box: Box, item: Item) -> Seen:
        item.state, item.due, item.owner, item.unwatched = "r", item.end, None, True
        self._note_return(box, item)
        self._tell(box, "release", item)
        return item.seen()

    def do_touch(self, step: Step, connection: int) -> Any:
        delta: Any = step.get("delta")
        if self.box(step) is not None and is_refused_value("delta", delta):
            return Failed("bad")
        if self.box(step) is not None and not delta:
            return None
        held = self._held(step, connection)
        if isinstance(held, Failed):
            return held
        box, item = held
        if not box.timed:
            return Failed("unsupported")
        item.due, item.back, item.ttl, item.ttr = (
            None if at is None else at + ms(delta) for at in (item.due, item.back, item.ttl, item.ttr)
        )
        self._tell(box, "touch", item)
        if delta >= LONG_MS / 1000:
            self.partings.add("a touch of an hour or more")
        if not (delta * 1e6).is_integer():
            self.partings.add("a touch of a part of a microsecond")
        return item.seen()

    def _found(self, step: Step) -> Failed | tuple[Box, Item]:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        if not _is_id(step["id"]):
            return Failed("bad")
        item = box.items.get(step["id"])
        return Failed("not_found") if item is None else (box, item)

    def do_bury(self, step: Step, connection: int) -> Any:
        found = self._found(step)
        if isinstance(found, Failed):
            return found
        box, item = found
        if item.state != "!":
            item.state, item.due, item.owner, item.unwatched = "!", item.end, None, False
            self._tell(box, "bury", item)
        return item.seen()

    def do_delete(self, step: Step, connection: int) -> Any:
        found = self._found(step)
        return found if isinstance(found, Failed) else self._remove(*found, "delete")

    def do_peek(self, step: Step, connection: int) -> Any:
        found = self._found(step)
        return found if isinstance(found, Failed) else found[1].seen()

    def do_kick(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        most = 1 if step.get("count") is None else step["count"]
        if not _is_id(most) or most > LARGEST:
            return Failed("bad")
        kicked = box.in_state("!")[:most]
        for item in kicked:
            item.state = "r"
            self._tell(box, "kick", item)
        if kicked and box.type == "utube":
            self.partings.add("a kick in utube")
        return len(kicked)

    def do_release_all(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        taken = box.in_state("t")
        for item in taken:
            self._give_back(box, item)
        return len(taken)

    def do_truncate(self, step: Step, connection: int) -> Any:
        box = self.box(step)
        if box is None:
            return Failed("no_tube")
        gone = len(box.items)
        if box.in_state("t"):
            self.partings.add("records of gone tasks")
        box.items.clear()
        return gone

    def _remove(self, box: Box, item: Item, event: str) -> Seen:
        del box.items[item.key]
        item.state = "-"
        self._tell(box, event, item)
        return item.seen()

    # Sessions

    def _connection(self, name: str) -> int:
        """The connection of that name, made at its first appearance with a session of its own."""
        if name not in self._connections:
            connection = self._connections[name] = next(self._numbers)
            self._sessions[connection] = next(self._numbers)
        return self._connections[name]

    def do_connect(self, step: Step, connection: int) -> None:
        """The name has appeared; no more is needed."""

    def do_disconnect(self, step: Step, connection: int) -> None:
        del self._connections[step["s"]]
        for waiter in [waiter for waiter in self._waiters if waiter.connection == connection]:
            if waiter.puts:
                self.partings.add("a put whose connection is gone")
            self._end(waiter, Failed("disconnected"))
        self._leave(self._sessions.pop(connection))

    def _leave(self, session: int) -> None:
        """A session has one connection less."""
        if session in self._sessions.values():
            return
        if self._session_ttr:
            self._sleeping.append(Ending(session, self.now + self._session_ttr))
        else:
            self._end_session(session)

    def _end_session(self, session: int) -> None:
        self._names.pop(session, None)
        for box in self.boxes.values():
            for item in sorted(box.in_state("t"), key=lambda item: item.key):
                if item.owner == session:
                    self._give_back(box, item)

    def do_identify(self, step: Step, connection: int) -> Any:
        wanted = step.get("as")
        if wanted == "<malformed>":
            return Failed("bad")
        if wanted is not None:
            known = {name: session for session, name in self._names.items()}
            if wanted not in known:
                return Failed("unknown_session")
            old, self._sessions[connection] = self._sessions[connection], known[wanted]
            self._sleeping = [ending for ending in self._sleeping if ending.session != known[wanted]]
            if old != known[wanted]:
                self._leave(old)
        session = self._sessions[connection]
        if session not in self._names:
            self._names[session] = f"S{next(self._named)}"
        return self._names[session]

    def do_cfg(self, step: Step, connection: int) -> Any:
        options = step["opts"]
        if is_refused(step, None):
            return Failed("bad")
        if "ttr" in options:
            self._session_ttr = ms(options["ttr"])
        return None

    # Waiting

    def _try(
        self, step: Step, connection: int, box: Box, try_it: Callable[[], Any], timeout: Any, *, puts: bool
    ) -> Any:
        """Try once; then wait."""
        result = try_it()
        wait = None if timeout is None else max(ms(timeout), 0)
        if result is None and wait != 0:
            waiter = Waiter(step.get("bg"), connection, box, self.now, wait, try_it, puts)
            self._waiters.append(waiter)
            return waiter
        return Failed("full") if result is None and puts else result

    def _wait(self, waiter: Waiter) -> Any:
        self._pass_time(waiter.deadline, lambda: waiter.is_over)
        return waiter.result

    def _end(self, waiter: Waiter, result: Any) -> None:
        self._waiters.remove(waiter)
        waiter.result, waiter.is_over = result, True
        if waiter.label is not None:
            self._out.woke.append((waiter.label, result))

    def _serve(self) -> bool:
        """Serve the first in line that can have what it waits for; tell whether there was one."""
        for waiter in self._waiters:
            rivals = [other for other in self._waiters if other.box is waiter.box and other is not waiter]
            result = waiter.try_it()
            if result is not None:
                if any(other.may_overtake(waiter) for other in rivals):
                    self.partings.add("the order of waiters")
                if waiter.deadline == self.now:
                    self.partings.add("two ends at one moment")
                self._end(waiter, result)
                return True
        return False

    # Time

    def do_sleep(self, step: Step, connection: int) -> None:
        self._pass_time(self.now + ms(step["seconds"]))

    def _pass_time(self, until: int | None, stop: Callable[[], bool] = lambda: False) -> None:
        while True:
            self._settle()
            if stop():
                return
            later = [at for at in self._dues() if at > self.now]
            then = min(later, default=until)
            if then is None:
                raise AssertionError("the scenario waits for ever")
            if until is not None and then > until:
                then = until
            if then == self.now:
                return
            self.now = then
            self.instants.append(then)

    def _dues(self) -> Iterator[int]:
        for box in self.boxes.values():
            yield from (item.due for item in box.items.values() if item.due is not None)
        yield from (ending.at for ending in self._sleeping)
        yield from (waiter.deadline for waiter in self._waiters if waiter.deadline is not None)

    def _settle(self) -> None:
        """Do what is due now, serve the waiters, and end those whose time is over."""
        while self._run_timers() or self._serve():
            pass
        over = [w for w in self._waiters if w.deadline is not None and w.deadline <= self.now]
        if len(over) > 1 and any(waiter.is_in_front for waiter in over):
            self.partings.add("two ends at one moment")
        for waiter in over:
            self._end(waiter, Failed("full") if waiter.puts else None)

    def _run_timers(self) -> bool:
        due = [ending for ending in self._sleeping if ending.at <= self.now]
        for ending in due:
            self._sleeping.remove(ending)
            self._end_session(ending.session)
        ending_in = [
            (box, item)
            for box in self.boxes.values()
            for item in sorted(box.items.values(), key=lambda item: (item.due or 0, item.key))
            if item.due is not None and item.due <= self.now
        ]
        if len(ending_in) > 1 and any(
            waiter.box is box or waiter.is_in_front for waiter in self._waiters for box, _ in ending_in
        ):
            self.partings.add("two ends at one moment")
        for box, item in ending_in:
            self._time_is_up(box, item)
        return bool(due or ending_in)

    def _time_is_up(self, box: Box, item: Item) -> None:
        if item.end is not None and item.end <= self.now:
            if item.state in "t~":
                ending = "ttr" if item.state == "t" else "delay"
                self.cut_short[box.name, ending] += 1
                self._note_raise(box, ending)
            if item.state == "t" and box.grouped and (item.back is None or item.back > self.now):
                self.partings.add("ttl of a taken task in utubettl")
            if item.unwatched and box.grouped:
                self.partings.add("ttl of a released task in utubettl")
            self._remove(box, item, "ttl")
            return
        event = "ttr" if item.state == "t" else "delay"
        item.state, item.owner, item.due = "r", None, item.end
        if event == "ttr":
            self._note_return(box, item)
        self._tell(box, event, item)

    def _note_return(self, box: Box, item: Item) -> None:
        """Note if a task comes back while a better one of its sub-queue is ready."""
        if box.type == "utubettl":
            heads = [other for other in box.in_state("r") if other.utube == item.utube]
            if heads[0] is not item:
                self.partings.add("a return behind a better task")

    def _tell(self, box: Box, event: str, item: Item) -> None:
        box.calls[event] += 1
        if box.listens:
            self._out.events.append(Told(box.name, event, item.seen(), self.now - self._began))
            self._note_raise(box, event)

    def _note_raise(self, box: Box, event: str) -> None:
        if box.listens and CALLED.get(event, {event}) & box.raises:
            self.partings.add("a callback that raises")


def _text(name: Any) -> str:
    """A sub-queue's name as text; having no name is equal to none of them."""
    if name is None:
        return NAMELESS
    if isinstance(name, bool):
        return str(name).lower()
    return f"{name:.14g}" if isinstance(name, float) else str(name)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def known_options(step: Step, type: str | None) -> set[str] | None:
    """The options that a call has here, in a tube of this type; ``None`` if it has none."""
    op = step["op"]
    if op == "put" and type is not None:
        return PUT_OPTIONS[type]
    if op == "release" and type is not None:
        return PUT_OPTIONS[type] & {"delay"}
    if op == "create" and step["driver"] in TUBE_OPTIONS:
        return TUBE_OPTIONS[step["driver"]] | {"if_not_exists", "temporary"}
    return {"ttr"} if op == "cfg" else None


def is_tube_name(name: Any) -> bool:
    """Tell whether a tube can have this name here."""
    return isinstance(name, str) and TUBE_NAME.fullmatch(name) is not None


def stand_in(name: Any) -> Any:
    """The name here of a tube, also if its name in Tarantool is one that it cannot have here."""
    return name if is_tube_name(name) else f"stand_in_{zlib.crc32(repr(name).encode())}"


def is_refused(step: Step, type: str | None) -> bool:
    """Tell whether a call is refused for its id, one of its options, or the name of the tube to make."""
    known = known_options(step, type)
    options = step.get("opts") or {}
    if "id" in step and not _is_id(step["id"]):
        return True
    if step["op"] == "touch":
        return is_refused_value("delta", step.get("delta"))
    if step["op"] == "create" and not is_tube_name(step["tube"]):
        return True
    if step["op"] == "release" and options.get("delay", 0) is None:
        options = {name: value for name, value in options.items() if name != "delay"}
    if step["op"] == "cfg" and options.get("ttr", 0) is None:
        return True
    return known is not None and any(
        name not in known or is_refused_value(name, value) for name, value in options.items()
    )


def is_nonsense(name: str, value: Any) -> bool:
    """Tell whether Tarantool makes a tube with this value of an option, but can then do little with it."""
    if name == "pri":
        return not (_is_number(value) and 0 <= value < 2**64 and value == int(value))
    if name == "capacity":
        return not _is_number(value) or value < 0
    return name in ("ttl", "ttr") and not (value is None or _is_number(value))


def is_refused_value(name: str, value: Any) -> bool:
    """Tell whether an option cannot have this value."""
    if name in ("pri", "capacity"):
        return not _is_id(value) or value > LARGEST
    if name in ("temporary", "if_not_exists"):
        return not isinstance(value, bool)
    if value is None:
        return False
    if name == "timeout":
        return not _is_number(value) or value > LONGEST
    if name in DURATIONS | {"delta"}:
        return not _is_number(value) or not 0 <= value <= LONGEST
    return name == "utube" and (not isinstance(value, (str, int, float)) or "\0" in str(value))
