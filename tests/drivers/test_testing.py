"""``tubes.testing`` needs pytest and hypothesis only when the kit is asked for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tubes.testing
from tubes import Features, TubeRecord, TubeType
from tubes.testing.children import Child, take_and_hold

WITHOUT = "import sys; sys.modules['{0}'] = None; "


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
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


def test_a_suite_that_is_imported_alone_says_what_it_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a failing test of it would say AssertionError, and nothing else."""
    rewritten: list[str] = []
    monkeypatch.setattr(pytest, "register_assert_rewrite", lambda *names: rewritten.extend(names))
    importlib.reload(tubes.testing)  # what an import of any module in it begins with
    assert {"tubes.testing.ownership", "tubes.testing.suite"} <= {*rewritten}


def test_a_class_for_one_type_is_not_made_of_one_for_another() -> None:
    """It would lack the tests that are not about the first type, and have that type's features."""

    class OfOne(tubes.testing.PrivateKit):
        type = "fifo"

    with pytest.raises(TypeError, match="OfAnother, for 'utube', must not derive from OfOne"):

        class OfAnother(OfOne):
            type = "utube"


MADE = """
from tubes import Features, TubeType
from tubes.testing import ConformanceKit


def maker(type):
    def make(store, tube):
        return store.realise(type, tube)

    return make


MADE = maker(TubeType())


class TestMade(ConformanceKit):
    type = "made"
    features = Features()
"""


@pytest.mark.slow
def test_a_driver_with_an_entry_point_is_found_by_the_kits_other_processes(tmp_path: Path) -> None:
    """What a function has made cannot be pickled, and need not be."""
    (tmp_path / "test_made.py").write_text(MADE)
    info = tmp_path / "made-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tubes.drivers]\nmade = test_made:MADE\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "task_of_a_killed", "."]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_driver_that_other_processes_cannot_have_is_told() -> None:
    def nested(store: Any, tube: TubeRecord) -> Any:
        return store.realise(TubeType(Features()), tube)

    tubes.register_driver("nested", nested)
    with tubes.connect("sqlite://") as queue:
        child = Child("sqlite://", "nested", {})
        with pytest.raises(TypeError, match=r"other processes cannot import .*'nested'.* top of a module"):
            child.start(take_and_hold, queue.create_tube("jobs", "nested"))
        child.close()


def test_the_kit_finds_its_store_in_any_folder(tmp_path: Path) -> None:
    """In a URL, these characters mean something else."""
    folder = tmp_path / "100%41 ?#"
    folder.mkdir()
    with tubes.connect(tubes.testing.PrivateKit().make_url(folder)):
        assert (folder / "kit.db").exists()
