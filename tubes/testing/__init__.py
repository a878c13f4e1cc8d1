"""Tools for tests of tubes, and the conformance kit for authors of drivers.

``FakeClock`` and the model need nothing but tubes. The kit needs pytest and hypothesis, and is imported only
when it is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tubes.testing.clock import FakeClock
from tubes.testing.model import Model

if TYPE_CHECKING:
    from tubes.testing.kit import ConformanceKit, PrivateKit

__all__ = ["ConformanceKit", "FakeClock", "Model", "PrivateKit"]

_SUITES = (
    "agreement", "api", "atomicity", "capacity", "changes", "concurrency", "groups", "machine", "ordering",
    "ownership", "reopening", "suite", "timing",
)  # fmt: skip

pytest = sys.modules.get("pytest")
if pytest is not None:  # before any of them is imported: their asserts then say what they compared
    pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))


def __getattr__(name: str) -> Any:
    if name not in ("ConformanceKit", "PrivateKit"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import hypothesis  # noqa: F401
        import pytest  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"tubes.testing.{name} needs pytest and hypothesis: pip install 'tubes-queue[test]'"
        ) from error
    return getattr(importlib.import_module(f"{__name__}.kit"), name)
