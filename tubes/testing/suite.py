"""What every suite of the kit builds on: how to name the driver under test, the fixtures, and the marks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import quote

import pytest

from tubes.clock import pause, real_monotonic
from tubes.driver import Features, TubeType
from tubes.errors import BadOption
from tubes.queue import Queue, connect
from tubes.registry import find_driver
from tubes.task import TRANSITIONS, Event, State, Task
from tubes.testing.children import Child
from tubes.testing.clock import FakeClock
from tubes.tube import Tube

UNKNOWN_ID = 10**15
"""An id that no task has, however long a store has been in use."""

PATIENCE = 20.0
"""Real seconds to wait for something that must happen by itself."""

E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Callable[..., Any])
Connect = Callable[..., Queue]
MakeTube = Callable[..., Tube]


def needs(*features: str) -> Callable[[F], F]:
    """Mark a test of types with these features; other types do not get it."""

    def mark(test: F) -> F:
        test.needs = features  # type: ignore[attr-defined]
        return test

    return mark


def without(*features: str) -> Callable[[F], F]:
    """Mark a test of types that lack all these features."""

    def mark(test: F) -> F:
        test.without = features  # type: ignore[attr-defined]
        return test

    return mark


def transactional(test: F) -> F:
    """Mark a test of transactions over several calls; stores without them do not get it."""
    test.transactional = True  # type: ignore[attr-defined]
    return test


class Suite:
    """Base of the suites. A test class names what it tests in its attributes.

    ``type``: the tube type, registered before the class is made. ``url``: the store, if ``make_url`` is not
    overridden. ``connect_settings``: what else ``connect`` is given, in other processes too. ``options``:
    options of the type's own that each tube is created with. ``features`` and ``order`` are read from a
    TubeType; state them for a driver made by a function.
    ``shared``: whether several connections can open the store. ``transactions``: whether the store has
    transactions over several calls. ``ids_follow_commits``: whether tasks are committed in the order of their
    ids, even by different threads.
    """

    type: ClassVar[str] = ""
    url: ClassVar[str] = ""
    connect_settings: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    features: ClassVar[Features]
    order: ClassVar[Literal["oldest", "newest"]] = "oldest"
    shared: ClassVar[bool] = True
    transactions: ClassVar[bool] = True
    ids_follow_commits: ClassVar[bool] = True
    _store_url: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.type:
            cls._check_bases()
            cls._read_type()
            cls._leave_out_tests()

    @classmethod
    def _check_bases(cls) -> None:
        """Refuse a class derived from another type's, which may have left out tests that this type needs."""
        for base in cls.__mro__:
            if getattr(base, "type", "") not in ("", cls.type):
                raise TypeError(f"{cls.__name__}, for {cls.type!r}, must not derive from {base.__name__}")

    @classmethod
    def _read_type(cls) -> None:
        """Read the features and the order from the driver, if it states them, and check them."""
        driver = find_driver(cls.type)
        if isinstance(driver, TubeType):
            cls.features, cls.order = driver.features, driver.order
        elif not hasattr(cls, "features"):
            declared = getattr(driver, "features", None)
            if not isinstance(declared, Features):
                raise TypeError(f"{cls.__name__}: set features = Features(...) to what {cls.type!r} has")
            cls.features = declared
        if not isinstance(cls.features, Features):
            raise TypeError(f"{cls.__name__}: features must be Features(...), not {cls.features!r}")
        if cls.order not in ("oldest", "newest"):
            raise TypeError(f"{cls.__name__}: order must be 'oldest' or 'newest', not {cls.order!r}")

    @classmethod
    def _leave_out_tests(cls) -> None:
        """Drop the tests that do not apply to this type: pytest does not collect what is None."""
        for name in dir(cls):
            test = getattr(cls, name)
            lacks_one = any(not getattr(cls.features, feature) for feature in getattr(test, "needs", ()))
            has_one = any(getattr(cls.features, feature) for feature in getattr(test, "without", ()))
            lacks_transactions = getattr(test, "transactional", False) and not cls.transactions
            if lacks_one or has_one or lacks_transactions:
                setattr(cls, name, None)

    # Hooks

    @staticmethod
    def _connect(url: str, **options: Any) -> Queue:
        return connect(url, **options)

    def make_url(self, directory: Path) -> str:
        """Return the URL of a store that this test may fill; by default a SQLite file in ``directory``."""
        return self.url or f"sqlite:///{quote(str(directory))}/kit.db"

    def connect(self, url: str, clock: FakeClock, **settings: Any) -> Queue:
        """Open a queue as the tests need it: with their clock, no background sweep, and no fsync."""
        settings = {"durability": "off", **self.connect_settings, **settings}
        return self._connect(url, clock=clock, sweep=False, **settings)

    # Fixtures

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store_url(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        """One store for all tests of a class; each cleans up after itself."""
        cls = type(self)
        if "_store_url" not in vars(cls):
            cls._store_url = self.make_url(tmp_path_factory.mktemp("kit"))
        return cls._store_url

    @pytest.fixture
    def make_queue(self, store_url: str, clock: FakeClock) -> Iterator[Connect]:
        """Connect to the store, each time as a session of its own. New tubes are gone after the test."""
        queues: list[Queue] = []
        before: set[str] = set()

        def make(**settings: Any) -> Queue:
            queues.append(self.connect(store_url, clock, **settings))
            if len(queues) == 1:
                before.update(queues[0].tubes())
            return queues[-1]

        yield make
        cleaner = self._usable(queues) if self.shared else None
        for queue in reversed(queues):
            if queue is not cleaner:
                queue.close()
        if self.shared and queues:
            try:
                with cleaner or self.connect(store_url, clock) as queue:
                    for name in set(queue.tubes()) - before:
                        queue.tube[name].truncate()
                        queue.tube[name].drop()
            except BaseException:
                self._leave_store()
                raise

    def _leave_store(self) -> None:
        """Have the next test make a new store: what this test has left there would disturb all others."""
        if "_store_url" in vars(type(self)):
            del type(self)._store_url

    def _usable(self, queues: list[Queue]) -> Queue | None:
        """A queue that can clean up, which saves a connection; not one in which a failed test still waits."""
        return next((queue for queue in queues if not (queue.is_closed or queue.store.waiters)), None)

    @pytest.fixture
    def queue(self, make_queue: Connect) -> Queue:
        return make_queue()

    @pytest.fixture
    def make_tube(self, queue: Queue) -> MakeTube:
        """Create a tube of the type under test."""

        def make(name: str = "jobs", **options: Any) -> Tube:
            return queue.create_tube(name, self.type, **{**self.options, **options})

        return make

    @pytest.fixture
    def tube(self, make_tube: MakeTube) -> Tube:
        return make_tube()

    @pytest.fixture
    def log(self, tube: Tube) -> Log:
        """The changes that the tube reports."""
        log = Log()
        tube.on_task_change(log)
        return log

    @pytest.fixture
    def child(self, store_url: str) -> Iterator[Child]:
        """Another process on the same store, in real time; ``start`` tells it what to do."""
        child = Child(store_url, self.type, {"durability": "off", **self.connect_settings})
        yield child
        child.close()

    # Helpers

    def apart(self, n: int) -> dict[str, Any]:
        """The put options that set a task apart from others, so that all can be taken at once."""
        return {"utube": f"group {n}"} if self.features.grouped else {}

    def in_order(self, tasks: list[Task]) -> list[Task]:
        """Sort tasks in the order in which the type takes them."""
        sign = 1 if self.order == "oldest" else -1
        return sorted(tasks, key=lambda task: (task.pri, sign * task.id))


def take(tube: Tube) -> Task:
    """Take a task that must be there."""
    task = tube.take(0)
    assert task is not None, "nothing was ready"
    return task


def refusal(call: Callable[..., object], *given: Any, error: type[E], **options: Any) -> E:
    """Make a call that must raise ``error``; return what it raised."""
    try:
        answer = call(*given, **options)
    except error as said:
        return said
    named = [*map(repr, given), *(f"{name}={value!r}" for name, value in options.items())]
    raise AssertionError(
        f"{getattr(call, '__name__', call)}({', '.join(named)}) must raise {error.__name__}; it returned {answer!r}"
    )


def refused(
    call: Callable[..., object], *given: Any, error: type[Exception] = BadOption, **options: Any
) -> str:
    """Make a call that must be refused; return the error's text."""
    return str(refusal(call, *given, error=error, **options))


def take_all(tube: Tube) -> list[Task]:
    """Take one by one until nothing is ready."""
    tasks = []
    while (task := tube.take(0)) is not None:
        tasks.append(task)
    return tasks


def ack_all(tube: Tube) -> list[Task]:
    """Take and ack one after the other until nothing is ready, so that tasks behind others come too."""
    tasks = []
    while (task := tube.take(0)) is not None:
        tasks.append(tube.ack(task))
    return tasks


def ids(tasks: list[Task]) -> list[int]:
    return [task.id for task in tasks]


def until(happened: Callable[[], Any]) -> None:
    """Wait for what another thread or process must do soon."""
    deadline = real_monotonic() + PATIENCE
    while not happened():
        assert real_monotonic() < deadline, f"it did not happen within {PATIENCE:g} s"
        pause(0.001)


class Log:
    """A callback that keeps what it is told, and can check that every move was legal."""

    def __init__(self) -> None:
        self.seen: list[tuple[Event, Task]] = []

    def __call__(self, task: Task, event: Event) -> None:
        self.seen.append((event, task))

    def names(self) -> list[str]:
        return [event.value for event, _ in self.seen]

    def check(self) -> None:
        """Check that every event made a move of the TRANSITIONS table, and that only taken tasks are held."""
        states: dict[int, State | None] = {}
        for event, task in self.seen:
            step = (states.get(task.id), event, task.state)
            assert step in TRANSITIONS, f"{step} is not a legal move"
            states[task.id] = task.state
            is_held = task.state is State.TAKEN
            assert (task.owner is not None, task.token is not None) == (is_held, is_held)
            assert task.due_at is None or task.state is not State.DONE


class Waiting:
    """A call that waits, in a thread of its own."""

    def __init__(self, clock: FakeClock, call: Callable[..., Any], *given: Any, **options: Any) -> None:
        self.got: list[Any] = []
        self.error: BaseException | None = None
        before = clock.waiting
        self.thread = threading.Thread(target=self._call, args=(call, given, options), daemon=True)
        self.thread.start()
        until(lambda: clock.waiting == before + 1)

    def _call(self, call: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            self.got.append(call(*given, **options))
        except BaseException as error:
            self.error = error

    def end(self) -> Any:
        """Wait until it is back; return what it answers, or raise what it raised."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the call still waits"
        if self.error is not None:
            raise self.error
        return self.got[0]
