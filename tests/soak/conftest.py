"""The soak tests run only when they are asked for: ``python -m pytest tests/soak``."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import crew

__all__ = ["crew"]

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless the command line names it, or a file in it."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True
