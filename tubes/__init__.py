"""tubes: queues of tasks on a database, with pluggable drivers.

>>> import tubes
>>> with tubes.connect("sqlite://") as queue:
...     jobs = queue.create_tube("jobs", "fifo")
...     _ = jobs.put({"hello": "world"})
...     task = jobs.take(timeout=0)
...     jobs.ack(task).data
{'hello': 'world'}
"""

from tubes.driver import Change, Driver, Features, NewTask, Ref, TubeRecord, TubeType, check_driver
from tubes.errors import (
    BadOption,
    Conflict,
    DuplicateKey,
    IncompleteDriver,
    LeaseLost,
    NoSuchSession,
    NoSuchTube,
    NotSupported,
    NotTaken,
    OutcomeUnknown,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TaskNotFound,
    TubeBusy,
    TubeError,
    TubeExists,
    TubeFull,
    TubesWarning,
    UnknownDriver,
)
from tubes.queue import Queue, connect
from tubes.registry import register_driver
from tubes.store import Unit
from tubes.task import TRANSITIONS, Event, State, Task
from tubes.tube import Tube

__version__ = "0.1.0"

__all__ = [
    "TRANSITIONS",
    "BadOption",
    "Change",
    "Conflict",
    "Driver",
    "DuplicateKey",
    "Event",
    "Features",
    "IncompleteDriver",
    "LeaseLost",
    "NewTask",
    "NoSuchSession",
    "NoSuchTube",
    "NotSupported",
    "NotTaken",
    "OutcomeUnknown",
    "Queue",
    "Ref",
    "SchemaMismatch",
    "State",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TaskNotFound",
    "Tube",
    "TubeBusy",
    "TubeError",
    "TubeExists",
    "TubeFull",
    "TubeRecord",
    "TubeType",
    "TubesWarning",
    "Unit",
    "UnknownDriver",
    "check_driver",
    "connect",
    "register_driver",
]
