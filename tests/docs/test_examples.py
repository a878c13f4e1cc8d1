"""Every Python block in README and docs runs and gives what it shows."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import interpreter
import pytest
from faults.harness import eventually
from interpreter import PIPE, Process

import tubes
import tubes.aio
from tubes.testing import FakeClock

from . import blocks as runner
from .blocks import PAGES, ROOT, blocks


def run(page: Path, folder: Path, *redis: str) -> subprocess.CompletedProcess[str]:
    return interpreter.run([runner.__file__, page, *redis], cwd=folder, text=True)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python")],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_python_in_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needs_redis = any(runner.REDIS in block.text for block in blocks(page, "python"))
    done = run(page, tmp_path, *([request.getfixturevalue("redis_db")] if needs_redis else []))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", [tubes, tubes.aio], ids=lambda module: module.__name__)
def test_the_example_in_a_module_gives_what_it_shows(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_names_its_language_and_every_fence_is_closed(page: Path) -> None:
    """A block without a language would not be run, and nobody would notice."""
    fences = sum(line.lstrip().startswith("```") for line in page.read_text(encoding="utf-8").splitlines())
    assert fences == 2 * len(blocks(page))
    for block in blocks(page):
        assert block.language in ("python", "console", "text", "sql", "json", "toml", "mermaid"), block


@pytest.mark.parametrize(
    "wrong",
    [
        "raise ValueError",
        "x = = 1",
        ">>> 1 + 1\n3",
        ">>> 1 / 0",
        "# worker.py\nx = = 1",
        "x = 1\n```\n\n```python\ny",
    ],
)
def test_a_wrong_block_fails(wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Text.\n\n```python\n{wrong}\n```\n", encoding="utf-8")
    assert run(page, tmp_path).returncode != 0


def test_blocks_share_a_namespace_and_files_are_saved(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# worker.py\nX = 1\n```\n\n- a list\n\n  ```python\n  y = 2\n  ```\n\n"
        "```python\n>>> y\n2\n>>> import worker; worker.X\n1\n```\n",
        encoding="utf-8",
    )
    sys_path = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, runner.__file__, str(page)],
        cwd=tmp_path,
        env=sys_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorials_programs_work_as_it_says(tmp_path: Path) -> None:
    """They are saved and started as the tutorial says, two workers at the same time."""
    for block in blocks(ROOT / "docs" / "tutorial.md", "python"):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")

    def start(program: str, *arguments: str) -> Process:
        return Process([program, *arguments], cwd=tmp_path, stdout=PIPE, text=True)

    producer = start("produce.py")
    assert producer.communicate(timeout=30)[0] == "20 tasks\n"
    workers = [start("worker.py", name) for name in ("ann", "bob")]
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    done = sorted(int(line.split()[-1]) for output in outputs for line in output.splitlines())
    assert done == [n * n for n in range(20)]
    report = start("report.py")
    assert "'ack': 20" in report.communicate(timeout=30)[0]


def test_the_worker_tries_again_puts_aside_and_ends_when_it_is_told(tmp_path: Path) -> None:
    """The how-to's worker, with shorter pauses between its tries. A kicked task is tried as often again."""
    (block,) = (found for found in blocks(ROOT / "docs/how-to/run-workers.md", "python") if found.file)
    (tmp_path / "worker.py").write_text(block.text.replace("RETRY_AFTER = 2.0", "RETRY_AFTER = 0.001"))
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    worker = Process(["worker.py", url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    with tubes.connect(url) as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=60, if_not_exists=True)
        jobs.put_many([{"n": -1}, {"n": 4}])
        eventually(lambda: jobs.statistics()["tasks"]["buried"] and jobs.statistics()["calls"]["ack"])
        (failed,) = jobs.tasks("!")
        assert failed.data == {"n": -1}
        assert jobs.kick() == 1
        eventually(lambda: jobs.statistics()["tasks"]["buried"])
        worker.terminate()
        output, said = worker.communicate(timeout=30)
        assert (worker.returncode, output) == (0, "2.0\n")
        assert said.count("\nValueError: ") == 10


def test_the_worker_puts_aside_what_killed_its_workers(tmp_path: Path) -> None:
    (block,) = (found for found in blocks(ROOT / "docs/how-to/run-workers.md", "python") if found.file)
    died = "import pathlib, os; pathlib.Path('tries').open('a').write('x'); os.kill(os.getpid(), 9)"
    text = block.text.replace('print(math.sqrt(data["n"]), flush=True)', died)
    assert died in text
    (tmp_path / "worker.py").write_text(text)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url) as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=60)
        jobs.put({"n": 1})
        for _ in range(5):
            worker = Process(["worker.py", url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
            worker.communicate(timeout=30)
        worker = Process(["worker.py", url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
        eventually(lambda: jobs.statistics()["tasks"]["buried"])
        worker.terminate()
        worker.communicate(timeout=30)
        assert (worker.returncode, (tmp_path / "tries").read_text()) == (0, "xxxxx")


def test_the_awaiting_worker_touches_what_takes_long_and_finishes_it_when_it_is_told_to_end(
    tmp_path: Path,
) -> None:
    """The how-to's worker, faster, with five tasks at once: the sixth is not taken.

    A task that is touched by as much as has gone by is over as late as if it were taken only now.
    """
    (block,) = (found for found in blocks(ROOT / "docs/how-to/asyncio.md", "python") if found.file)
    sleep, over = 'await asyncio.sleep(data["seconds"])', tmp_path / "over"
    assert sleep in block.text and "every=20" in block.text and "range(50)" in block.text
    text = block.text.replace("every=20", "every=0.5").replace("range(50)", "range(5)")
    work = f"""data["seconds"]
    while not __import__("os").path.exists({str(over)!r}):
        await asyncio.sleep(0.01)"""
    (tmp_path / "worker.py").write_text(text.replace(sleep, work))
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url) as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=60)
        jobs.put({}, pri=0)  # fails
        jobs.put_many([{"seconds": 1}] * 6, pri=1, ttr=60)
        worker = Process(["worker.py", url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)

        def tasks(state: str) -> int:
            return int(jobs.statistics()["tasks"][state])

        def due() -> list[datetime]:
            return [task.due_at for task in jobs.tasks("t") if task.due_at is not None]

        eventually(lambda: (tasks("buried"), tasks("taken")) == (1, 5))
        later = max(due()) + timedelta(seconds=1)
        eventually(lambda: min(due()) >= later)  # each was touched twice or more
        worker.terminate()
        over.touch()
        said = worker.communicate(timeout=60)[1]
        assert worker.returncode == 0, said
        calls = jobs.statistics()["calls"]
        assert (tasks("ready"), tasks("buried"), calls["ack"], calls["ttr"]) == (1, 1, 5, 0), said
        assert said.count("KeyError") == 1 and "no longer" not in said and "retrieved" not in said


def test_the_figures_show_what_waits_though_no_worker_lives_and_not_its_delay() -> None:
    """The how-to's figures: 40 of the 100 seconds since the put were its delay, whose end nobody saw."""
    (block,) = (
        found
        for found in blocks(ROOT / "docs/how-to/watch-a-queue.md", "python")
        if "def figures" in found.text
    )
    page: dict[str, Any] = {}
    exec(block.text.partition("\nwith ")[0], page)
    clock = FakeClock(round(time.time() * 1000) - 100_000)
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        queue.create_tube("jobs", "fifottl").put("x", delay=40)
        clock.advance(40)
        figures = dict(page["figures"](queue))
    assert figures['tubes_tasks{tube="jobs",state="ready"}'] == 1
    assert 60 <= figures['tubes_oldest_ready_seconds{tube="jobs"}'] < 90


def test_the_application_goes_on_where_its_work_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The how-to's application. An error in its lifespan's group would close the queue under all requests."""
    (block,) = (
        found
        for found in blocks(ROOT / "docs/how-to/web-application.md", "python")
        if "def lifespan" in found.text
    )
    page: dict[str, Any] = {}
    text = block.text.replace("await asyncio.sleep(0.01)  # the work", "1 / 0").replace("/jobs.db", "")
    exec(text.replace("sleep(1)", "sleep(0)"), page)

    async def serve() -> None:
        async with page["lifespan"](None) as state:
            await state["mails"].put(1)
            while not caplog.records:
                await asyncio.sleep(0)  # another task does the work
            await state["mails"].put(2)

    asyncio.run(serve())
    assert "ZeroDivisionError" in caplog.text


def test_the_awaiting_worker_makes_up_for_a_touch_that_failed() -> None:
    """Else, after a restart of the server, another worker would get the task long before it is done."""
    (block,) = (found for found in blocks(ROOT / "docs/how-to/asyncio.md", "python") if found.file)
    page: dict[str, Any] = {"__name__": "worker"}
    exec(block.text, page)
    touches: list[float] = []

    class Jobs:
        async def touch(self, task: str, delta: float) -> None:
            touches.append(delta)
            if len(touches) == 2:
                raise tubes.StoreUnavailable("away")
            if len(touches) == 5:
                raise tubes.NotTaken("jobs", 1)

    every = 1 / 1024
    asyncio.run(page["keep"](Jobs(), "task", every))
    assert touches == [every, every, 2 * every, every, every]


def test_the_copy_to_another_store_leaves_out_what_is_over() -> None:
    """The how-to's copy, even if a task never had any time to live."""
    (block,) = (
        found for found in blocks(ROOT / "docs/how-to/upgrade.md", "python") if "def copy" in found.text
    )
    page: dict[str, Any] = {}
    exec(block.text.partition("\nwith (")[0], page)
    with tubes.connect("sqlite://", sweep=False) as old, tubes.connect("sqlite://") as new:
        mails, there = old.create_tube("mails", "fifottl"), new.create_tube("mails", "fifottl")
        mails.put("over", ttl=0)
        mails.put("hello", ttl=60)
        page["copy"](mails, there)
        assert [task.data for task in there.tasks("r")] == ["hello"]
