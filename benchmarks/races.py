"""4 producers and 4 consumers, as threads or as processes, until every task is through."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contenders import Contender

SIDE = 4
"""How many producers, and how many consumers."""

POLL = 0.0005
"""Seconds that a consumer sleeps when it has found nothing and its ``take`` cannot wait."""

DEADLINE = 120.0
"""Seconds after which a race is given up."""


class Outcome(NamedTuple):
    """How long a race took, and how many tasks were taken more than once."""

    seconds: float
    doubles: int


def produce(contender: Contender, numbers: range, ready: Any) -> float:
    """Put these numbers; return when that began."""
    items = [contender.item(number) for number in numbers]
    put = contender.put
    ready.wait()
    began = time.monotonic()
    for item in items:
        put(item)
    return began


def consume(contender: Contender, total: int, seen: Any, ready: Any, chained: bool) -> tuple[float, int]:
    """Take and ack until all are through; return when this one did its last, and how many it saw twice.

    ``seen`` has one byte for each task, and all consumers share it.
    """
    take, ack, chain, number = contender.take, contender.ack, contender.ack_and_take, contender.number
    ready.wait()
    last, doubles = time.monotonic(), 0
    give_up = last + DEADLINE
    taken = take()
    while True:
        if taken is None:
            if bytes(seen).count(1) == total:
                return last, doubles
            if time.monotonic() > give_up:
                raise TimeoutError(f"{contender.name}: {bytes(seen).count(1)} of {total} tasks came through")
            if not contender.patience:
                time.sleep(POLL)
            taken = take()
            continue
        n = number(taken)
        doubles += seen[n]
        seen[n] = 1
        if chained:
            taken = chain(taken)
        else:
            ack(taken)
            taken = None
        last = time.monotonic()
        if taken is None:
            taken = take()


def in_threads(kind: type[Contender], folder: Path, durability: str, total: int, chained: bool) -> Outcome:
    """Race in eight threads of this process."""
    shared = kind(folder, durability)
    opened = [kind(folder, durability) if kind.per_thread else shared for _ in range(2 * SIDE)]
    for contender in opened:
        contender.wait = contender.patience
    seen = bytearray(total)
    ready = threading.Barrier(2 * SIDE)
    began: list[float] = []
    ended: list[tuple[float, int]] = []
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            if index < SIDE:
                began.append(produce(opened[index], share(total, index), ready))
            else:
                ended.append(consume(opened[index], total, seen, ready, chained))
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2 * SIDE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for contender in {id(contender): contender for contender in (shared, *opened)}.values():
        contender.close()
    if failures:
        raise failures[0]
    return outcome(began, ended)


def in_processes(kind: type[Contender], folder: Path, durability: str, total: int, chained: bool) -> Outcome:
    """Race in eight processes, each with its own connection."""
    context = server()
    kind(folder, durability).close()  # so that the schema is there before the race
    seen = context.RawArray("B", total)
    times = context.RawArray("d", 2 * SIDE)
    doubled = context.RawArray("l", 2 * SIDE)
    ready = context.Barrier(2 * SIDE)
    runners = [
        context.Process(
            target=runner,
            args=(kind, folder, durability, total, chained, index, seen, times, doubled, ready),
        )
        for index in range(2 * SIDE)
    ]
    for process in runners:
        process.start()
    for process in runners:
        process.join(DEADLINE + 30)
    if any(process.exitcode != 0 for process in runners):
        for process in runners:
            process.kill()
        raise RuntimeError(f"{kind.name}: a process of the race failed")
    ended = [(times[index], doubled[index]) for index in range(SIDE, 2 * SIDE)]
    return outcome(list(times[:SIDE]), ended)


def runner(
    kind: type[Contender],
    folder: Path,
    durability: str,
    total: int,
    chained: bool,
    index: int,
    seen: Any,
    times: Any,
    doubled: Any,
    ready: Any,
) -> None:
    """What one process of a race does."""
    contender = kind(folder, durability)
    contender.wait = contender.patience
    try:
        if index < SIDE:
            times[index] = produce(contender, share(total, index), ready)
        else:
            times[index], doubled[index] = consume(contender, total, seen, ready, chained)
    except BaseException:
        ready.abort()
        raise
    finally:
        contender.close()


def server() -> ForkServerContext:
    """Fork from a clean process: a fork of this one would inherit its threads' locks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.races", "rich.progress", "rich.table"])
    return context


def share(total: int, index: int) -> range:
    """The numbers of one producer."""
    return range(index, total, SIDE)


def outcome(began: Sequence[float], ended: Sequence[tuple[float, int]]) -> Outcome:
    """From the first put to the last ack."""
    return Outcome(max(last for last, _ in ended) - min(began), sum(doubles for _, doubles in ended))
