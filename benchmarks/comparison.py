"""What is compared on a server: which contenders, in which loops, against which bars; and one round of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.crews import Cores, Crew, Fresh, crews
from benchmarks.rounds import CHUNKS, Results
from benchmarks.server_contenders import BATCH, Contender, Tubes, TubesAllOptions


@dataclass(frozen=True)
class Row:
    """One line of the table: the key of its figures, and the bars that they must reach."""

    key: str
    title: str
    of_raw: float | None = None
    of_peers: float | None = None
    """How many times as fast as each peer it must be."""

    ours: str = Tubes.name


class Step(NamedTuple):
    """The row of the table, if any, and the contenders' loop that is timed for it."""

    row: str | None
    loop: str


@dataclass(frozen=True)
class Part:
    """What all contenders put and then take, each in a fresh database, and how many tasks in a round."""

    name: str
    put: Step
    take: Step
    connections: int
    tasks: int
    least: int
    all_options: bool


def one_by_one(tasks: int) -> Part:
    """On one connection, each task in a step of its own; also our utubettl with all options."""
    return Part("one", Step("put", "put_all"), Step("take", "take_all"), 1, tasks, 100, all_options=True)


def by_batches(tasks: int) -> Part:
    """On one connection, in batches of a hundred."""
    put, take = Step("put_many", "put_batches"), Step("take_many", "take_batches")
    return Part("batch", put, take, 1, tasks, BATCH * CHUNKS, all_options=False)


class Server(NamedTuple):
    """A server to measure on: its description, how to get a fresh database there, and its clients' cores."""

    description: str
    fresh: Fresh
    cores: Cores = None


@dataclass(frozen=True)
class Comparison:
    """Which contenders are compared in what, on which servers, and where the results are written."""

    store: str
    program: str
    page: str
    distributions: Sequence[str]
    """Packages whose versions matter."""

    raw: type[Contender]
    peers: Sequence[type[Contender]]
    rows: Sequence[Row]
    parts: Sequence[Part]
    servers: Callable[[str | None], AbstractContextManager[Sequence[Server]]]
    """Opens the server that a URL names, or servers of its own."""

    warm: int = 1
    """Steps, at least, on each connection before the clock runs: some clients prepare frequent statements."""

    settle: Callable[[str], None] = lambda url: None
    """Does at once, in a database, what its server would do by itself some time after many puts."""

    @property
    def others(self) -> Sequence[type[Contender]]:
        """All but raw, which always takes part."""
        return (Tubes, TubesAllOptions, *self.peers)

    def peers_among(self, kinds: Sequence[type[Contender]]) -> list[type[Contender]]:
        """The contenders that are other projects."""
        return [kind for kind in kinds if kind in self.peers]

    def of_raw(self, results: Results, row: Row, name: str) -> float | None:
        """A contender's speed as a share of raw's."""
        return results.ratio(row.key, name, row.key, self.raw.name)

    def measure(
        self,
        results: Results,
        part: Part,
        kinds: Sequence[type[Contender]],
        server: Server,
        scale: float,
        turn: int,
    ) -> None:
        """Run one round of one part."""
        count = max(round(part.tasks * scale / part.least), 1) * part.least
        if not part.all_options:
            kinds = [kind for kind in kinds if kind is not TubesAllOptions]
        least = part.least // CHUNKS
        with crews(kinds, server.fresh, part.connections, server.cores) as opened:
            for crew in opened:
                for step in (part.put, part.take):
                    crew.run(step.loop, 0, self.warm * least)
            run(results, part.put, opened, count, least, turn)
            for crew in opened:
                self.settle(crew.url)
            run(results, part.take, opened, count, least, turn)
            for crew in opened:
                crew.check_empty()

    def shortfalls(self, results: Results, kinds: Sequence[type[Contender]]) -> list[str]:
        """Every bar that was missed."""
        missed = []
        for row in self.rows:
            ratio = self.of_raw(results, row, row.ours)
            if ratio is not None and row.of_raw is not None and ratio < row.of_raw:
                missed.append(f"{row.title}: {ratio:.2f} of {self.raw.name}, not ≥ {row.of_raw}")
            for kind in self.peers_among(kinds):
                times = results.ratio(row.key, row.ours, row.key, kind.name)
                if times is not None and row.of_peers is not None and times < row.of_peers:
                    missed.append(f"{row.title}: {times:.2f} times {kind.name}, not ≥ {row.of_peers}")
        return missed


def run(results: Results, step: Step, opened: Sequence[Crew], count: int, least: int, turn: int) -> None:
    """Let the crews do one step, and keep its figures if it has a row."""
    figures = in_turns(opened, step.loop, count, least, turn)
    if step.row is not None:
        results.add(step.row, figures)


def in_turns(opened: Sequence[Crew], loop: str, count: int, least: int, turn: int) -> dict[str, float]:
    """Let the crews work on ``count`` tasks, a tenth at a time, in turns; return microseconds a task by name."""
    spent = dict.fromkeys((crew.kind.name for crew in opened), 0.0)
    for chunk in range(CHUNKS):
        start = (turn + chunk) % len(opened)
        for crew in [*opened[start:], *opened[:start]]:
            many = share(crew.kind, count, least)
            spent[crew.kind.name] += crew.run(loop, chunk * many, many)
    return {
        crew.kind.name: spent[crew.kind.name] / (share(crew.kind, count, least) * CHUNKS) * 1e6
        for crew in opened
    }


def share(kind: type[Contender], count: int, least: int) -> int:
    """How many tasks a contender does in one turn, in whole batches."""
    return max(min(count, kind.backlog) // CHUNKS // least, 1) * least
