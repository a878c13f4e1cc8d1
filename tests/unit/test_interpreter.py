"""A process that is forked for a test behaves as a new interpreter would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import interpreter
import pytest
from interpreter import PIPE, Process

PROGRAMS = {
    "where and what it is": "import os, sys; print(sys.argv, sys.path[0], os.getcwd(), __name__, os.environ['X'])",
    "its signals": "import signal; print([(n, signal.getsignal(n)) for n in signal.valid_signals() if n < 32])",
    "its files": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))",
    "its threads": "import threading; print(threading.enumerate()[1:], threading.current_thread().name)",
    "what it reads": "import sys; print(sys.stdin.read() + 'é', file=sys.stderr)",
    "a status": "import sys; sys.exit(3)",
    "a reason": "import sys; sys.exit('because')",
    "what is done at its end": "import atexit; atexit.register(print, 'bye'); print('hello', end='')",
    "a thread that it waits for": "import threading, time\nthreading.Timer(0.05, print, ['late']).start()",
    "its death": "import os; os.kill(os.getpid(), 9)",
    "Ctrl-C": "import os, sys, time\nsys.excepthook = lambda *error: None\nos.kill(os.getpid(), 2)\ntime.sleep(9)",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_is_what_a_new_interpreter_is(program: str, tmp_path: Path) -> None:
    arguments = ["-c", program, "one", "two"]
    given = {"input": "ü", "cwd": tmp_path, "env": {**os.environ, "X": "x", "PYTHONUTF8": "1"}, "text": True}
    forked = interpreter.run(arguments, **given)  # type: ignore[arg-type]
    new = subprocess.run([sys.executable, *arguments], capture_output=True, **given)  # type: ignore[call-overload]
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_an_error_is_told_and_is_a_status(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import sys\nassert sys.argv[0] == __file__\n1 / 0\n")
    done = interpreter.run([file], text=True)
    assert done.returncode == 1
    assert f'File "{file}", line 3' in done.stderr and done.stderr.endswith(
        "\nZeroDivisionError: division by zero\n"
    )


def test_it_can_be_stopped_and_killed() -> None:
    process = Process(
        ["-c", "print('here', flush=True); import time; time.sleep(60)"], stdout=PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL == process.poll()
    process.kill()  # it has ended already
    process.stdout.close()
