"""Other processes for the kit: what they do, and how a test starts and ends them."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

from tubes.driver import DriverFactory, TubeType
from tubes.errors import UnknownDriver
from tubes.queue import connect
from tubes.registry import find_driver, installed, register_driver
from tubes.tube import Tube

PATIENCE = 60.0
_processes = multiprocessing.get_context("forkserver")
"""Children are forked from a process that has only loaded the modules of stores and drivers: a tenth of the
time of a new interpreter. They must not have the threads and connections of the tests' own process."""

Role = Callable[[Tube, "Results"], None]


class Results:
    """What a child tells its parent, through a pipe that outlives the child."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def tell(self, what: Any) -> None:
        self._pipe.send(what)


class Child:
    """One other process on the same store, in real time.

    If no entry point has its driver, that is pickled and sent along, so it must be importable.
    """

    def __init__(self, url: str, type: str, settings: dict[str, Any]) -> None:
        self._url, self._type, self._settings = url, type, settings
        self._process: Any = None
        self._pipe, self._theirs = _processes.Pipe(duplex=False)

    def start(self, role: Role, tube: Tube) -> None:
        _load_beforehand()
        process: Any = _processes.Process(
            target=_play,
            args=(role, self._url, tube.name, self._type, self._driver(), self._settings, self._theirs),
            daemon=True,
        )
        process.start()
        self._process = process
        self._theirs.close()

    def _driver(self) -> TubeType | DriverFactory | None:
        if any(entry.name == self._type for entry in installed("tubes.drivers")):
            return None
        driver = find_driver(self._type)
        try:
            pickle.dumps(driver)
        except Exception as error:
            raise TypeError(
                f"other processes cannot import {driver!r}, the driver of {self._type!r} ({error}): "
                "define it at the top of a module, or give it an entry point"
            ) from error
        return driver

    def hear(self) -> Any:
        """Wait for the next thing that the child tells; EOFError when it has ended."""
        assert self._pipe.poll(PATIENCE), "no answer from the child process"
        return self._pipe.recv()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE)

    def close(self) -> None:
        """Make sure that it is gone."""
        if self._process is not None:
            self.kill()


def take_and_hold(tube: Tube, results: Results) -> None:
    """Take one task and never finish it."""
    task = tube.take(PATIENCE)
    results.tell(None if task is None else task.id)
    threading.Event().wait()


def take_and_ack_all(tube: Tube, results: Results) -> None:
    """Take and ack, telling each task's id, until a task says stop."""
    results.tell("ready")
    while (task := tube.take(PATIENCE)) is not None:
        tube.ack(task)
        if task.data == "stop":
            break
        results.tell(task.id)
    results.tell("stop")


def _load_beforehand() -> None:
    """Say which modules the process that the children are forked from loads at its start."""
    loaded = [entry.module for group in ("tubes.stores", "tubes.drivers") for entry in installed(group)]
    _processes.set_forkserver_preload([__name__, *loaded])


def _play(
    role: Role,
    url: str,
    name: str,
    type: str,
    driver: TubeType | DriverFactory | None,
    settings: dict[str, Any],
    pipe: Any,
) -> None:
    try:
        find_driver(type)
    except UnknownDriver:
        if driver is None:
            raise
        register_driver(type, driver)
    with connect(url, **settings) as queue:
        role(queue.tube[name], Results(pipe))
