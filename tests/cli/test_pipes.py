"""``tubes put`` and ``tubes take`` in pipes: streams, bad lines, signals, readers that go away."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import interpreter
import pytest
from faults.harness import Struck, ended, eventually, strike
from interpreter import Process, drawn_on

import tubes
from tubes.cli import BAD_INPUT, CLOSED, INTERRUPTED, REFUSED, TERMINATED, UNAVAILABLE, USAGE
from tubes.cli_pipes import BATCH, Putting, Taking, task_as_json
from tubes.payload import parse
from tubes.testing import FakeClock

from .conftest import Shell, values


def count(tube: tubes.Tube, state: str) -> int:
    return tube.statistics()["tasks"][state]


def answer_one(process: Process, tube: tubes.Tube) -> None:
    """Wait until another process has taken and acked a first task: it has started, and waits for the next."""
    assert process.stdout is not None
    tube.put("first")
    assert json.loads(process.stdout.readline())["data"] == "first"
    eventually(lambda: count(tube, "total") == 0)


def test_what_is_put_through_a_pipe_is_taken_through_a_pipe(shell: Shell, jobs: tubes.Tube) -> None:
    sent = [{"n": n, "text": "wörld \u2028 ☃", "deep": [None, True, 1.5, 10**30]} for n in range(1000)]
    lines = "\n".join(json.dumps(value, ensure_ascii=n % 2 == 0) for n, value in enumerate(sent))
    put = shell.run("put", "jobs", input=lines.encode())
    assert (put.returncode, put.stdout, put.stderr) == (0, b"", b"")
    taken = shell.run("take", "jobs", "--ack", "--all", "--timeout", "0")
    assert (taken.returncode, taken.stderr) == (0, b"")
    assert [task["data"] for task in values(taken.stdout)] == sent
    assert count(jobs, "total") == 0


def test_a_hyphen_is_standard_input(shell: Shell, jobs: tubes.Tube) -> None:
    put = shell.run("put", "jobs", "-", input=b"1\n2\n")
    assert (put.returncode, put.stderr) == (0, b"")
    assert [task.data for task in jobs.tasks("r")] == [1, 2]


def test_a_bad_line_is_told_by_its_number_and_the_others_are_stored(shell: Shell, jobs: tubes.Tube) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    put = shell.run("put", "jobs", input=b'1\n\n{"a": \nNaN\n"\xff"\n[1e999]\n2\n"\\ud800"\n' + deep)
    assert put.returncode == BAD_INPUT
    told = put.stderr.decode().splitlines()
    assert {line.split(":")[1].strip() for line in told} == {
        "line 3",
        "line 4",
        "line 5",
        "line 6",
        "line 9",
        "3 put, 5 bad",
    }
    assert "tubes: line 4: data cannot be carried as JSON: nan is not a finite number" in told
    assert [task.data for task in jobs.tasks("r")] == [1, 2, "\ud800"]


def test_a_byte_order_mark_in_front_is_no_part_of_the_first_line(shell: Shell, jobs: tubes.Tube) -> None:
    """Windows programs write one. In front of a later line, as when files were joined, it is not JSON."""
    mark = "\ufeff".encode()
    put = shell.run("put", "jobs", input=mark + b"1\r\n2\r\n" + mark + b"3\n")
    assert put.returncode == BAD_INPUT
    bad, summary = put.stderr.decode().splitlines()
    assert (bad.split(":")[1].strip(), summary.partition(": ")[2]) == ("line 3", "2 put, 1 bad")
    assert [task.data for task in jobs.tasks("r")] == [1, 2]


@pytest.mark.parametrize("sent", [b"", b"\n", b"{bad\n", b"1\n"])
def test_an_option_that_cannot_be_is_wrong_usage_whatever_the_input(
    shell: Shell, jobs: tubes.Tube, sent: bytes
) -> None:
    put = shell.run("put", "jobs", "--delay", "3", input=sent)
    assert (put.returncode, put.stdout) == (USAGE, b"")
    [told] = put.stderr.decode().splitlines()
    assert "does not support 'delay'" in told
    assert count(jobs, "total") == 0


def test_a_line_is_stored_when_it_has_come_not_when_the_input_ends(shell: Shell, jobs: tubes.Tube) -> None:
    process = shell.start("put", "jobs", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b'"now"\n"not y')
    process.stdin.flush()
    task = jobs.take(timeout=20)
    assert task is not None and task.data == "now"
    process.stdin.write(b'et"')
    process.stdin.close()
    assert process.wait(20) == 0
    assert [task.data for task in jobs.tasks("r")] == ["not yet"]


def test_input_that_does_not_wait_is_waited_for(shell: Shell, jobs: tubes.Tube) -> None:
    """Another process that shares it may have set it so: a program that runs an event loop, say."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with open(read, "rb") as input, open(write, "wb", buffering=0) as output:
        process = shell.start("put", "jobs", stdin=input.fileno(), stderr=subprocess.PIPE)
        for number in range(3):
            output.write(b"%d\n" % number)
            task = jobs.take(timeout=20)
            assert task is not None and task.data == number
    assert process.wait(20) == 0
    assert process.stderr is not None and process.stderr.read() == b""


FILLED = """
import os
from tubes import cli, cli_output

def await_reader(wait=cli_output.await_reader):
    wait()
    cli_output.await_reader = wait
    try:
        while os.write(1, b" " * 4096):
            pass
    except BlockingIOError:
        pass

cli_output.await_reader = await_reader
cli.main()
"""
"""The command, whose output another process fills just before its first line."""


def test_output_that_others_have_filled_meanwhile_is_waited_for(shell: Shell, jobs: tubes.Tube) -> None:
    """They share it, and have made it non-blocking."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(read, "rb") as output:
        process = Process(["-c", FILLED, "put", "jobs", "1"], env=shell.environment, stdout=write)
        os.close(write)
        try:
            assert output.read().strip() == b"1"
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_full_tube_ends_the_input_and_says_where(shell: Shell) -> None:
    with shell.connect() as queue:
        queue.create_tube("few", "limfifottl", capacity=3)
        put = shell.run("put", "few", "--json", input=b"1\n2\n3\n\n5\n6\n")
        assert put.returncode == REFUSED
        assert [task["data"] for task in values(put.stdout)] == [1, 2, 3]
        assert b"3 put; line 5 and later lines were not" in put.stderr
        assert b"'few' is full" in put.stderr


@pytest.mark.parametrize(
    ("last", "told"),
    [(b"2", "500 put; lines 502 to 1001"), (b"1e999", "500 put; line 502")],
    ids=["a batch", "one by one"],
)
def test_an_end_of_which_nobody_knows_is_told_with_its_lines(
    jobs: tubes.Tube,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    last: bytes,
    told: str,
) -> None:
    """The lines of the commit that was under way, and no others: lines that cannot be carried end a batch."""
    put_many = jobs.put_many

    def lose(datas: list[Any]) -> Any:
        if math.inf in datas:
            return put_many(datas)
        raise tubes.OutcomeUnknown("the connection was lost in the commit")

    def lines() -> Iterator[list[bytes]]:
        yield [b"0"] * BATCH
        monkeypatch.setattr(jobs, "put_many", lose)
        monkeypatch.setattr(jobs, "put", lambda data: lose([data]))
        yield [b"bad", *[b"1"] * (BATCH - 1), last, b"2"]

    monkeypatch.setattr("tubes.cli_pipes.incoming", lines)
    with pytest.raises(tubes.OutcomeUnknown):
        Putting(jobs, parse, {}, False).run()
    assert f"ended early, {told} may or may not have been put; later lines were not" in capfd.readouterr().err


@pytest.mark.slow
def test_bytes_go_in_and_come_out_as_base64(shell: Shell, jobs: tubes.Tube) -> None:
    put = shell.run("put", "jobs", "--bytes", input=b"AP8=\nnot base64\naGVs*bG8=\naGVsbG8=\r\n")
    assert put.returncode == BAD_INPUT
    assert b"line 2: not base64" in put.stderr and b"line 3: not base64" in put.stderr
    assert [task.data for task in jobs.tasks("r")] == [b"\x00\xff", b"hello"]
    taken = values(shell.run("take", "jobs", "--ack", "--count", "2").stdout)
    assert [task["bytes"] for task in taken] == ["AP8=", "aGVsbG8="]
    assert not any("data" in task for task in taken)


def test_a_line_has_all_of_a_task() -> None:
    clock = FakeClock()
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        jobs = queue.create_tube("jobs", "utubettl")
        put = jobs.put({"a": 1}, pri=3, ttl=60, ttr=20, utube="u")
        clock.advance(10)
        jobs.release(jobs.take(0) or put)
        clock.advance(5)
        task = jobs.take(0)
        assert task is not None and task.due_at is not None
        assert task_as_json(task) == {
            "id": put.id,
            "tube": "jobs",
            "state": "taken",
            "data": {"a": 1},
            "pri": 3,
            "utube": "u",
            "created_at": put.created_at.isoformat(),
            "updated_at": (put.created_at + timedelta(seconds=15)).isoformat(),
            "due_at": (put.created_at + timedelta(seconds=35)).isoformat(),
            "ttl": 60.0,
            "ttr": 20.0,
            "attempts": 2,
            "session": str(queue.identify()),
        }


def test_take_without_ack_keeps_the_task_for_a_session_that_other_commands_can_join(
    shell: Shell, jobs: tubes.Tube
) -> None:
    jobs.put_many(["a", "b", "c"])
    first = values(shell.run("take", "jobs", "--session-ttr", "600").stdout)[0]
    second = values(shell.run("take", "jobs", "--session", first["session"]).stdout)[0]
    assert second["session"] == first["session"]
    assert count(jobs, "taken") == 2

    def kept_ms() -> int:
        with closing(sqlite3.connect(shell.folder / "shell.db")) as db:
            kept = db.execute("SELECT ttr_ms FROM tubes_session WHERE id = ?", [UUID(first["session"]).hex])
            return int(kept.fetchone()[0])

    assert kept_ms() == 600_000  # joining it leaves that as it is
    third = values(shell.run("take", "jobs", "--session", first["session"], "--session-ttr", "300").stdout)[0]
    assert kept_ms() == 300_000  # unless told otherwise
    ids = [str(task["id"]) for task in (first, second, third)]
    acked = shell.run("ack", "jobs", "--session", first["session"], *ids)
    assert (acked.returncode, acked.stderr) == (0, b"")
    assert count(jobs, "total") == 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)], ids=["TERM", "INT"]
)
def test_a_signal_ends_a_waiting_take_at_once_and_loses_nothing(
    number: signal.Signals, status: int, shell: Shell
) -> None:
    with shell.connect() as queue:
        jobs = queue.create_tube("jobs", "fifo")
        process = shell.start(
            "take", "jobs", "--ack", "--all", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        answer_one(process, jobs)
        process.send_signal(number)
        assert process.wait(20) == status  # nothing else would end it
        assert process.stderr is not None and process.stderr.read().strip() == b""
        jobs.put("second")
        task = jobs.take(timeout=0)
        assert task is not None and task.data == "second"


LOST = """
import os, sys, tubes
from tubes.cli import main

number = int(sys.argv.pop())

class Garbage:
    def __del__(self):
        os.kill(os.getpid(), number)
        [*map(int, range(9))]

def get_tube(queue, name, get_tube=tubes.Queue.get_tube):
    Garbage()
    return get_tube(queue, name)

tubes.Queue.get_tube = get_tube
main()
"""
"""The command, with a signal while Python runs a ``__del__``: what a handler raises there reaches nobody."""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)], ids=["TERM", "INT"]
)
def test_a_signal_that_comes_while_python_clears_away_is_obeyed(
    shell: Shell, jobs: tubes.Tube, number: signal.Signals, status: int
) -> None:
    """Such as while it collects garbage, which takes long at the start of a command."""
    process = Process(
        ["-c", LOST, "take", "jobs", str(int(number))], env=shell.environment, stderr=subprocess.PIPE
    )
    try:
        told = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, b"Traceback" in told) == (status, False), told


def test_a_signal_that_comes_before_the_command_is_read_is_obeyed(shell: Shell) -> None:
    at_once = """import os, signal, tubes.cli
tubes.cli.keep_secret = lambda url: os.kill(os.getpid(), signal.SIGTERM)
tubes.cli.main()"""
    ended = interpreter.run(["-c", at_once, "ls"], env=shell.environment, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (TERMINATED, b"", b"")


def test_what_could_not_be_written_goes_back_when_take_is_ended(shell: Shell, jobs: tubes.Tube) -> None:
    """Its reader stops reading, so that it is stuck in the middle of a task too large for the pipe."""
    jobs.put("small")
    jobs.put("x" * 1_000_000)
    jobs.put("last")
    command = ("take", "jobs", "--count", "3", "--session-ttr", "600", "--ack")
    process = shell.start(*command, stdout=subprocess.PIPE)
    eventually(lambda: count(jobs, "taken") == 3)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["data"] == "small"
    assert os.read(process.stdout.fileno(), 10)
    process.terminate()
    assert process.wait(20) == TERMINATED
    assert [str(task.data)[0] for task in jobs.tasks("r")] == ["x", "l"]
    assert count(jobs, "total") == 2


def test_nothing_stays_taken_while_the_reader_is_behind(shell: Shell, jobs: tubes.Tube) -> None:
    """Else a task's ttr could be over before it is written, and it would be printed again and again."""
    jobs.put_many(["x" * 1000] * 300)  # several times what the pipe holds
    process = shell.start("take", "jobs", "--ack", "--all", "--timeout", "0", stdout=subprocess.PIPE)
    eventually(lambda: count(jobs, "total") < 300 and count(jobs, "taken") == 0)
    assert process.poll() is None and process.stdout is not None
    printed = [task["id"] for task in values(process.stdout.read())]
    assert len(printed) == 300 and printed == sorted(set(printed))
    assert process.wait(20) == 0
    assert count(jobs, "done") == 300


def test_what_a_killed_take_was_to_ack_is_ready_again_at_once(shell: Shell, jobs: tubes.Tube) -> None:
    jobs.put("x" * 1_000_000)  # take gets stuck there
    process = shell.start("take", "jobs", "--ack", stdout=subprocess.PIPE)
    eventually(lambda: count(jobs, "taken") == 1)
    process.kill()
    process.wait()
    assert jobs.take(timeout=20) is not None


def test_no_signal_leaves_a_task_taken_that_take_was_to_ack(jobs: tubes.Tube) -> None:
    """Wherever its handler raises: the session may go on, and would keep the task."""
    jobs.put_many(range(200))
    at = 1
    while strike(Taking(jobs, 1, 0.0, acks=True).run, at):
        assert jobs.tasks("t") == [], at
        at += 1
    assert at > 20


def test_what_was_written_is_acked_though_a_signal_comes_while_the_ack_waits(
    shell: Shell, jobs: tubes.Tube
) -> None:
    """Another connection locks the file between the take and the ack, until after the signal."""
    read, write = os.pipe()
    is_locked, is_struck = threading.Event(), threading.Event()

    def lock_the_file() -> None:
        with closing(sqlite3.connect(shell.folder / "shell.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            is_locked.set()
            assert os.read(read, 1000)  # the task is printed
            signal.raise_signal(signal.SIGUSR1)
            assert is_struck.wait(20)

    def raise_struck(*_: object) -> None:
        is_struck.set()
        raise Struck

    def lock_when_taken(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.TAKE:
            other.start()
            assert is_locked.wait(20)

    jobs.put("x")
    jobs.on_task_change(lock_when_taken)
    other = threading.Thread(target=lock_the_file)
    before, stdout = signal.signal(signal.SIGUSR1, raise_struck), os.dup(1)
    os.dup2(write, 1)
    try:
        with pytest.raises(Struck):
            Taking(jobs, 1, 0.0, acks=True).run()
    finally:
        os.dup2(stdout, 1)
        signal.signal(signal.SIGUSR1, before)
        ended(other)
        for number in (read, write, stdout):
            os.close(number)
    assert count(jobs, "done") == 1


@pytest.mark.slow
def test_what_was_written_is_done_though_a_second_signal_comes(shell: Shell, jobs: tubes.Tube) -> None:
    """As from a terminal that is closed, or from somebody in a hurry."""
    jobs.put("small")
    jobs.put("x" * 1_000_000)  # take gets stuck there
    jobs.put_many(range(20))
    process = shell.start("take", "jobs", "--all", "--ack", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: count(jobs, "taken") == 22)
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["data"] == "small"
    assert os.read(process.stdout.fileno(), 10)
    process.terminate()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (TERMINATED, INTERRUPTED)
    assert process.stderr.read().strip() == b""
    assert count(jobs, "done") == 1
    assert count(jobs, "ready") == 21


@pytest.mark.slow
def test_a_task_whose_time_was_over_before_it_was_written_is_told(shell: Shell) -> None:
    """Its reader reads too late: the task is back in the tube, and must not pass for acked."""
    with shell.connect() as queue:
        jobs = queue.create_tube("jobs", "fifottl")
        jobs.put("x" * 1_000_000, ttr=0.1)
        process = shell.start("take", "jobs", "--ack", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        eventually(lambda: jobs.statistics()["calls"]["ttr"] == 1)
        assert process.stdout is not None and process.stderr is not None
        assert len(json.loads(process.stdout.read())["data"]) == 1_000_000
        assert b"was printed but not acked: its ttl or ttr was over" in process.stderr.read()
        assert process.wait(20) == REFUSED
        assert count(jobs, "ready") == 1


def test_a_take_that_is_ended_has_nothing_to_give_back_where_the_time_was_over(shell: Shell) -> None:
    with shell.connect() as queue:
        jobs = queue.create_tube("jobs", "fifottl")
        jobs.put("x" * 1_000_000, ttr=0.1)  # take gets stuck there
        process = shell.start("take", "jobs", "--ack", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        eventually(lambda: jobs.statistics()["calls"]["ttr"] == 1)
        process.terminate()
        assert process.wait(20) == TERMINATED
        assert process.stderr is not None and process.stderr.read() == b""


def test_take_prints_as_many_as_it_was_asked_for_in_however_many_commits(
    shell: Shell, jobs: tubes.Tube
) -> None:
    jobs.put_many(range(2 * BATCH))
    take = shell.run("take", "jobs", "--count", str(BATCH + 1), "--ack")
    assert [task["data"] for task in values(take.stdout)] == [*range(BATCH + 1)]
    assert count(jobs, "done") == BATCH + 1


def test_take_waits_for_each_task_that_it_was_asked_for(shell: Shell, jobs: tubes.Tube) -> None:
    jobs.put_many("ab")
    take = shell.start("take", "jobs", "--count", "3", "--ack", stdout=subprocess.PIPE)
    assert take.stdout is not None
    assert [json.loads(take.stdout.readline())["data"] for _ in range(2)] == ["a", "b"]
    jobs.put("c")
    assert json.loads(take.stdout.readline())["data"] == "c"
    assert take.wait(20) == 0


@pytest.mark.slow
def test_a_reader_that_goes_away_gets_no_more_and_the_rest_stays(shell: Shell, jobs: tubes.Tube) -> None:
    jobs.put_many("x" * 1000 for _ in range(1000))
    process = shell.start(
        "take", "jobs", "--ack", "--all", "--timeout", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == CLOSED
    assert process.stderr.read() == b""
    left = count(jobs, "ready")
    assert 800 < left < 1000
    assert count(jobs, "total") == left


@pytest.mark.slow
def test_help_ends_as_quietly_as_tasks_where_the_reader_goes_away(shell: Shell) -> None:
    process = subprocess.Popen(
        shell.installed("--help"), env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(20), process.stderr.read()) == (CLOSED, b"")
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        ("put jobs <&-", UNAVAILABLE, b"Bad file descriptor"),
        ("take jobs --ack --timeout 0 >&-", CLOSED, b"the output cannot be written: Bad file descriptor"),
        ("take jobs --ack --timeout 0 >/dev/full", CLOSED, b"the output cannot be written: No space left"),
        ("put --help >/dev/full", CLOSED, b"the output cannot be written: No space left"),
        ("put --help >&-", CLOSED, b"the output cannot be written: Bad file descriptor"),
    ],
)
def test_a_closed_standard_file_is_an_error_and_never_the_store(
    arguments: str, status: int, why: bytes, shell: Shell, jobs: tubes.Tube
) -> None:
    """A file that is opened gets the lowest free descriptor: the store's must not become standard output."""
    jobs.put("x" * 5000)
    command = f'exec "$0" {arguments}'
    done = subprocess.run(
        ["sh", "-c", command, *shell.installed()], env=shell.environment, capture_output=True, timeout=30
    )
    assert done.returncode == status
    assert why in done.stderr and b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert [len(task.data) for task in jobs.tasks("r")] == [5000]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("put jobs 2>/dev/full", BAD_INPUT),
        ("ls --limt 3 2>/dev/full", USAGE),
        ("ls --limt 3 2>&-", USAGE),
        ("ls --url sqlite:////dev/null/$(printf '\\377')/x.db 2>&-", UNAVAILABLE),
    ],
)
def test_where_nobody_can_be_told_the_work_goes_on_and_the_status_tells(
    arguments: str, status: int, shell: Shell, jobs: tubes.Tube
) -> None:
    command = f"printf '1\\nno JSON\\n2\\n' | \"$0\" {arguments}"
    done = subprocess.run(
        ["sh", "-c", command, *shell.installed()], env=shell.environment, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")
    assert [task.data for task in jobs.tasks("r")] == ([1, 2] if status == BAD_INPUT else [])


def test_nothing_taken_is_a_status_of_its_own(shell: Shell, jobs: tubes.Tube) -> None:
    taken = shell.run("take", "jobs", "--ack", "--timeout", "0.01")
    assert (taken.returncode, taken.stdout, taken.stderr) == (REFUSED, b"", b"")


@pytest.mark.parametrize(
    "command", [["put", "jobs"], ["take", "jobs", "--all", "--timeout", "0"]], ids=lambda command: command[0]
)
def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(
    shell: Shell, jobs: tubes.Tube, command: list[str]
) -> None:
    jobs.put_many([1, 2] if command[0] == "take" else [])
    ours, theirs = pty.openpty()
    shell.environment["TERM"] = "xterm"
    process = shell.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    process.communicate(b"1\n2\n", timeout=20)
    drawn = drawn_on(ours)
    assert command[0] in drawn and "\x1b[" in drawn and "2/?" in drawn
    assert shell.run("put", "jobs", input=b"3").stderr == b""
    assert shell.run("take", "jobs", "--timeout", "0").stderr == b""


@pytest.mark.parametrize("command", [["take", "jobs", "--timeout", "0"], ["put", "jobs", "--json"]])
def test_no_bar_is_drawn_between_tasks_on_a_terminal(
    shell: Shell, jobs: tubes.Tube, command: list[str]
) -> None:
    jobs.put_many(["x"] if command[0] == "take" else [])
    ours, theirs = pty.openpty()
    shell.environment["TERM"] = "xterm"
    process = shell.start(*command, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs)
    os.close(theirs)
    process.communicate(b'"x"\n', timeout=20)
    [task] = drawn_on(ours).splitlines()
    assert process.returncode == 0
    assert json.loads(task)["data"] == "x"


def test_a_misspelt_option_is_refused_with_a_suggestion(shell: Shell, jobs: tubes.Tube) -> None:
    refused = shell.run("take", "jobs", "--timeuot", "3")
    assert refused.returncode == USAGE
    assert b"--timeout" in refused.stderr
    assert b"Traceback" not in refused.stderr


@pytest.mark.slow
def test_ctrl_c_finds_each_line_either_put_and_counted_or_neither(shell: Shell, jobs: tubes.Tube) -> None:
    """So that whoever goes on from the line that is named puts none twice."""
    for _ in range(20):
        jobs.truncate()
        process = shell.start("put", "jobs", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None and process.stderr is not None
        feeder = threading.Thread(target=feed, args=(process.stdin, b"1\n" * 300_000))
        feeder.start()
        eventually(lambda: count(jobs, "total") > 1000)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        feeder.join()
        if process.wait(20) == INTERRUPTED:
            break
    stored = count(jobs, "total")
    assert f"{stored} put; line {stored + 1} and later lines were not" in said


def feed(pipe: Any, data: bytes) -> None:
    """Write until the reader has gone."""
    with suppress(BrokenPipeError), pipe:
        pipe.write(data)


@pytest.mark.slow
def test_a_file_is_found_by_the_url_that_made_it(shell: Shell) -> None:
    url = f"sqlite:///{shell.folder}/my%20queue.db"
    assert shell.run("create", "jobs", "--url", url).returncode == 0
    assert shell.run("put", "jobs", "1", "--url", url).returncode == 0
