"""Finds drivers by type name and stores by URL scheme: registered by hand, or through entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain
from typing import Any, cast

from tubes.driver import DriverFactory, TubeType, check_driver
from tubes.errors import BadOption, IncompleteDriver, StoreUnavailable, UnknownDriver, shown, suggestion
from tubes.interrupts import guarded
from tubes.options import tube_name

_registered: dict[str, TubeType | DriverFactory] = {}
_found: dict[str, dict[str, EntryPoint]] = {}
_unusable: dict[str, str] = {}
"""Types whose entry points cannot be used, and why.

Loading is tried once, since every opening of tubes asks for it; but again if the process lacked something.
"""


def register_driver(type: str, driver: TubeType | DriverFactory) -> None:
    """Make ``create_tube(name, type)`` known in this process.

    ``driver`` is a TubeType, or a callable ``(store, tube) -> Driver``, usually a class. An incomplete one is
    refused with IncompleteDriver, a type that is registered already with BadOption. Existing tubes of this
    type can be opened from now on (Tarantool: ``queue.register_driver``).
    """
    tube_name(type, option="type", what="type name")
    if not isinstance(driver, TubeType) and not callable(driver):
        raise BadOption(
            f"a driver is a TubeType or a callable (store, tube), not {shown(driver)}", value=driver
        )
    check_driver(driver)
    with suppress(UnknownDriver, IncompleteDriver):  # of its entry point, whose driver is registered by this
        find_driver(type)
    is_taken = type not in _registered and type in _entries("tubes.drivers")
    # A TubeType is a value: a module that is imported twice registers an equal one. Of two threads one wins
    if is_taken or _registered.setdefault(type, driver) != driver:
        raise BadOption(f"driver {type!r} is registered already", option="type", value=type)


def find_driver(type: str) -> TubeType | DriverFactory:
    """Return what is registered under a type name, or raise UnknownDriver."""
    driver = _registered.get(type)
    if driver is not None:
        return driver
    entry = _entries("tubes.drivers").get(type)
    if entry is None:
        raise UnknownDriver(type, driver_names())
    if type in _unusable:
        raise UnknownDriver(type, why=_unusable[type])
    return guarded(_load, type, entry)  # else a signal handler's error would be taken for the module's


def _load(type: str, entry: EntryPoint) -> TubeType | DriverFactory:
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # whatever a module raises while it is imported
        why = f": {entry.value} cannot be imported ({error})"
        _registered.pop(type, None)  # what the module registered before it failed
        if not isinstance(error, OSError | MemoryError):  # such as too many open files
            _unusable[type] = why
        raise UnknownDriver(type, why=why) from error
    check_driver(loaded)
    _registered[type] = loaded
    return cast("TubeType | DriverFactory", loaded)


def driver_names() -> list[str]:
    """All type names that ``create_tube`` accepts."""
    return sorted({*_registered, *_entries("tubes.drivers")})


def find_store(scheme: str) -> Callable[..., Any]:
    """Return the store of a URL scheme, or raise BadOption that lists the schemes.

    StoreUnavailable if no store is installed, or if this one cannot be loaded.
    """
    known = _entries("tubes.stores")
    entry = known.get(scheme.partition("+")[0])
    if not known:
        raise StoreUnavailable(
            "no store found: the metadata of tubes-queue (its .dist-info), which names the stores, is missing"
        )
    if entry is None:
        raise BadOption(
            f"no store for URLs that begin with {scheme!r}{suggestion(scheme, known)}", option="url"
        )
    try:
        return cast("Callable[..., Any]", entry.load())
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"the store for {scheme!r} needs a package that is not installed: {error}"
        ) from error
    except (ImportError, OSError, AttributeError) as error:  # such as from a substitute for sqlite3
        raise StoreUnavailable(f"the store for {scheme!r} cannot be loaded: {error}") from error


def installed(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group.

    From Python 3.15 on, none of a package's entry points can be read if one of them, of whatever group, is
    not a "module:name". That package alone then counts as not installed.
    """
    with suppress(ValueError):
        return entry_points(group=group)
    found: dict[str, Iterable[EntryPoint]] = {}  # the first package of each name, as entry_points does
    for package in distributions():
        with suppress(ValueError, FileNotFoundError):  # the latter if it has no metadata
            found.setdefault(package.name, package.entry_points.select(group=group))
    return chain.from_iterable(found.values())


def _entries(group: str) -> dict[str, EntryPoint]:
    if group not in _found:
        found: dict[str, EntryPoint] = {}
        try:
            entries = installed(group)
        except OSError as error:
            raise StoreUnavailable(f"the installed packages cannot be read: {error}") from error
        for entry in entries:
            other = found.setdefault(entry.name, entry)
            if group == "tubes.drivers" and other.value != entry.value:  # else chance would decide
                _unusable[entry.name] = f": two packages register it, as {other.value} and as {entry.value}"
        _found[group] = found
    return _found[group]
