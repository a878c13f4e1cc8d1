"""The real command, in processes of its own, on a store in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import interpreter
import pytest
from interpreter import Process

import tubes

TUBES = "import sys; from tubes.cli import main; sys.exit(main())"
"""What the installed command runs."""


class Shell:
    """Runs ``tubes`` as a shell would."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/shell.db"
        self.folder = folder
        self.environment = {**os.environ, "TUBES_URL": self.url, "COLUMNS": "120"}
        for name in ("TUBES_SESSION", "PYTHONUNBUFFERED"):  # without buffers less can go wrong
            self.environment.pop(name, None)
        self._started: list[Process] = []

    def installed(self, *arguments: str) -> list[str]:
        """The command as it is installed, an interpreter of its own."""
        return [str(Path(sys.executable).with_name("tubes")), *arguments]

    def run(self, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return interpreter.run(["-c", TUBES, *arguments], input=input, env=self.environment, timeout=30)

    def start(self, *arguments: str, **files: Any) -> Process:
        process = Process(["-c", TUBES, *arguments], env=self.environment, **files)
        self._started.append(process)
        return process

    def connect(self) -> tubes.Queue:
        return tubes.connect(self.url)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for file in (process.stdin, process.stdout, process.stderr):
                if file is not None:
                    file.close()


def values(output: bytes) -> list[Any]:
    """What the lines of NDJSON mean."""
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.end()


@pytest.fixture
def jobs(shell: Shell) -> Iterator[tubes.Tube]:
    """A fifo of that name in the shell's store."""
    with shell.connect() as queue:
        yield queue.create_tube("jobs", "fifo")
