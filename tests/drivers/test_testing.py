"""``tubes.testing`` asks for pytest and hypothesis only when the kit is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tubes.testing

WITHOUT = "import sys; sys.modules['{0}'] = None; "


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["pytest", "hypothesis"])
def test_the_clock_and_the_model_need_nothing(module: str) -> None:
    program = WITHOUT.format(module) + "from tubes.testing import FakeClock, Model; FakeClock().advance(1)"
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["pytest", "hypothesis"])
def test_the_kit_says_what_to_install(module: str) -> None:
    done = run(WITHOUT.format(module) + "from tubes.testing import ConformanceKit")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: tubes.testing.ConformanceKit needs pytest and hypothesis: pip install 'tubes-queue[test]'"
    )


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="ConfromanceKit"):
        tubes.testing.ConfromanceKit  # noqa: B018
