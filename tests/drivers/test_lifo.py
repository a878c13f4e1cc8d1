"""The example of a custom driver: a LIFO on a SQLite file."""

import runpy
from pathlib import Path

import pytest

from examples import lifo
from tubes.testing import ConformanceKit


class TestLifo(ConformanceKit):
    type = "lifo"
    topics = ("agreement", "api", "changes", "ordering", "reopening")


def test_the_example_undoes_the_last_step_first(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(lifo.__file__)), run_name="__main__")
    assert capsys.readouterr().out == "undo: deleted a page\nundo: moved a line\nundo: typed a word\n"
