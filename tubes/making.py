"""Makes the drivers of tubes, starts and stops them, and reports what a driver of your own raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tubes import options as checked
from tubes.driver import Driver, Features, TubeRecord, TubeType, check_driver
from tubes.errors import BadOption, TubeError, UnknownDriver
from tubes.feature_options import check_tube_options, stored_options
from tubes.interrupts import is_raised_by_handler
from tubes.logs import Log
from tubes.store import Store

log = Log("tubes.queue")


def make_driver(store: Store, definition: Any, record: TubeRecord) -> Driver:
    """Make a tube's driver from what is registered for its type."""
    if isinstance(definition, TubeType):
        return store.realise(definition, record)
    try:
        driver = cast("Driver", definition(store, record))
    except TubeError:
        raise
    except Exception as error:  # whatever its factory raises
        raise UnknownDriver(record.type, why=f": its driver cannot be made ({_named(error)})") from error
    check_driver(driver)
    return driver


def start_driver(record: TubeRecord, start: Callable[[], object]) -> None:
    """Start a tube's driver. If it raises, the tube counts as one whose driver is not available here."""
    try:
        start()
    except TubeError:
        raise
    except Exception as error:
        if is_raised_by_handler(error):
            raise
        raise UnknownDriver(record.type, why=f": its driver cannot be started ({_named(error)})") from error


def stop_driver(driver: Driver) -> None:
    """Stop a driver; log what it raises, so that the others are stopped too."""
    try:
        driver.stop()
    except Exception:
        log.exception("the driver %r cannot be stopped", driver)


def options_to_store(
    store: Store, definition: Any, type: str, name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Check a new tube's options against its type; return them as the catalogue keeps them."""
    has_features = isinstance(getattr(definition, "features", None), Features)  # else its driver has them
    if has_features and not isinstance(definition, TubeType):
        return _checked_options(definition, type, name, options)
    driver = make_driver(store, definition, TubeRecord(0, name, type, {}, False))  # a bad one is refused here
    try:
        return _checked_options(driver, type, name, options)
    finally:
        stop_driver(driver)


def _checked_options(definition: Any, type: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    own: Sequence[str] = getattr(definition, "tube_options", ())
    where = f"{type} tube {name!r}"
    check_tube_options(options, definition.features, own, where)
    stored: dict[str, Any] = {}
    if own:
        given = {option: options[option] for option in own if option in options}
        stored = _as_read_again(definition.check_tube_options(given), where)
    return stored | stored_options(options)


def _as_read_again(stored: Any, where: str) -> dict[str, Any]:
    """A type's own options as they will be read back: with unreadable ones, nobody could open the tube."""
    try:
        return checked.check_stored_options(json.loads(json.dumps(dict(stored), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise BadOption(f"the options of {where} cannot be stored: {error}") from error


def _named(error: Exception) -> str:
    """An error's type and message: the message of a KeyError is the key alone."""
    return f"{type(error).__name__}: {error}"
