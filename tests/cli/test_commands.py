"""Each command: what it prints, what it changes, and its exit status."""

from __future__ import annotations

import bisect
import json
import logging
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interpreter import drawn_on
from redis_servers import RedisServer

import tubes
from tubes.cli import REFUSED, UNAVAILABLE, USAGE, cli, run
from tubes.cli_output import keep_secret, without_secrets
from tubes.cli_process import StderrHandler
from tubes.payload import why_unreadable

from .conftest import Shell, values


@dataclass
class Said:
    """How a command ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def tubes_(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process, on a store of its own: fast, and all but signals and pipes are real."""
    monkeypatch.setenv("TUBES_URL", f"sqlite:///{tmp_path}/q.db")
    monkeypatch.delenv("TUBES_SESSION", raising=False)
    monkeypatch.setattr("tubes.cli_output._secrets", set())  # without those of earlier tests

    def command(*arguments: str) -> Said:
        status = run(arguments)
        return Said(status, *capfd.readouterr())

    return command


@pytest.mark.parametrize("is_module", [False, True])
def test_the_installed_command_lists_its_commands_and_examples(shell: Shell, is_module: bool) -> None:
    command = [sys.executable, "-m", "tubes", "--help"] if is_module else shell.installed("--help")
    helped = subprocess.run(command, env=shell.environment, capture_output=True, timeout=30)
    assert helped.returncode == 0
    text = helped.stdout.decode()
    for name in ("create", "ls", "put", "take", "ack", "kick", "stats", "doctor", "migrate", "demo"):
        assert f"\n  {name} " in text
    assert "tubes take jobs --ack" in text
    assert "Exit status:" in text


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands_and_options(shell: Shell, name: str) -> None:
    shell.environment["_TUBES_COMPLETE"] = f"{name}_source"
    defined = shell.run()
    assert (defined.returncode, defined.stderr) == (0, b"")
    assert (
        b"_tubes_completion" in defined.stdout
        and f"_TUBES_COMPLETE={name}_complete".encode() in defined.stdout
    )
    shell.environment["_TUBES_COMPLETE"] = f"{name}_complete"
    for words, number, last, completed in (
        ("tubes tr", "1", "tr", b"truncate"),
        ("tubes put --by", "2", "--by", b"--bytes"),
    ):
        shell.environment |= {"COMP_WORDS": words, "COMP_CWORD": last if name == "fish" else number}
        said = shell.run()
        assert (said.returncode, said.stderr) == (0, b"")
        assert completed in said.stdout.replace(b",", b" ").split()


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_command_has_help(name: str, tubes_: Command) -> None:
    said = tubes_(name, "--help")
    assert said.status == 0
    assert said.out.startswith(f"Usage: tubes {name} [OPTIONS]")
    assert ("--url URL" in said.out) == (name != "demo")
    assert "--json" in said.out


def test_the_demo_refuses_a_store_since_it_makes_one(tubes_: Command) -> None:
    assert tubes_("demo", "--url", "sqlite:////no/such/folder/x.db", "--pages", "50").status == 2


def test_a_tube_is_created_with_its_options(tubes_: Command) -> None:
    said = tubes_("create", "sites", "utubettl", "--ttl", "60", "--ttr", "5.5", "--pri", "3", "--json")
    assert said.status == 0
    options = {"ttl_ms": 60000, "ttr_ms": 5500, "pri": 3}
    assert said.json() == {"name": "sites", "type": "utubettl", "options": options}
    refused = tubes_("create", "sites", "utubettl")
    assert refused.status == REFUSED and "pass --if-not-exists" in refused.err
    assert tubes_("create", "sites", "utubettl", "--if-not-exists").status == 0
    assert tubes_("create", "sites", "fifo", "--if-not-exists").status == REFUSED


def test_a_temporary_tube_is_empty_when_nobody_uses_the_store(tubes_: Command) -> None:
    for name, more in (("short", ["--temporary"]), ("kept", [])):
        assert tubes_("create", name, *more).status == 0
        tubes_("put", name, "1")
    ready = {name: counts["tasks"]["ready"] for name, counts in tubes_("stats", "--json").json().items()}
    assert ready == {"short": 0, "kept": 1}


def test_a_store_in_memory_is_there(tubes_: Command) -> None:
    for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        assert tubes_("ls", "--json", "--url", url) == Said(0, "", "")


def test_the_store_may_be_named_before_or_after_the_command(tubes_: Command, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    assert tubes_("--url", other, "create", "here").status == 0
    assert [tube["name"] for tube in values(tubes_("ls", "--url", other, "--json").out.encode())] == ["here"]
    assert tubes_("ls", "--json").out == ""
    assert tubes_("ls", "--url", other, "--namespace", "mine", "--json").out == ""


def test_a_name_that_cannot_be_makes_no_store(tubes_: Command, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    assert tubes_("--url", f"sqlite:///{path}", "create", "a b").status == USAGE
    assert not path.exists()


def test_put_prints_the_id_or_the_task(tubes_: Command) -> None:
    tubes_("create", "sites", "utubettl")
    id = int(tubes_("put", "sites", '{"a": 1}').out)
    task = tubes_(
        "put", "sites", '"x"', "--utube", "h", "--pri", "2", "--ttl", "9", "--delay", "5", "--json"
    ).json()
    assert task["id"] > id
    assert (task["data"], task["state"], task["utube"], task["pri"]) == ("x", "delayed", "h", 2)
    assert task["ttl"] == 14


def test_ls_shows_tubes_and_tasks(tubes_: Command) -> None:
    tubes_("create", "jobs")
    for data in ('"one"', '"two"'):
        tubes_("put", "jobs", data)
    tubes_("bury", "jobs", "1")
    assert {"jobs", "fifo"} <= set(tubes_("ls").out.split())
    assert '"one"' in tubes_("ls", "jobs", "--state", "buried").out
    assert [task["data"] for task in values(tubes_("ls", "jobs", "--json").out.encode())] == ["one", "two"]
    tube = tubes_("ls", "--json").json()
    assert (tube["name"], tube["type"], tube["options"]) == ("jobs", "fifo", {})
    assert (tube["tasks"]["ready"], tube["tasks"]["buried"]) == (1, 1)


def test_ls_shows_who_holds_a_task_and_since_when(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", '"one"')
    assert "session" not in tubes_("ls", "jobs").out
    task = tubes_("take", "jobs").json()
    tubes_("put", "jobs", '"two"')  # nobody holds this one
    shown = tubes_("ls", "jobs").out
    assert "session" in shown
    row = next(row for row in shown.splitlines() if '"one"' in row)
    assert task["updated_at"][:19].replace("T", " ") in row
    assert row.split()[-1] == task["session"][:8]


def test_ls_says_when_there_may_be_more(tubes_: Command) -> None:
    tubes_("create", "jobs")
    for data in ("1", "2"):
        tubes_("put", "jobs", data)
    assert tubes_("ls", "jobs", "--limit", "3").err == ""
    assert "at most 2 of each state are shown" in tubes_("ls", "jobs", "--limit", "2").err
    said = tubes_("ls", "jobs", "--limit", "1", "--state", "ready")
    assert "at most 1 of each state are shown" in said.err
    assert tubes_("ls", "jobs", "--limit", "1", "--json").err == ""
    tubes_("bury", "jobs", "1")
    assert tubes_("ls", "jobs", "--limit", "2").err == ""  # one of each state


def test_ls_shows_what_a_terminal_would_obey_as_what_it_is(tubes_: Command) -> None:
    tubes_("create", "sites", "utube")
    tubes_("put", "sites", '"\x9b31m, \u202e, \x7f, \\u001b, caf\u00e9"', "--utube", "\x9b2J\x1b[1m")
    shown = tubes_("ls", "sites").out
    assert r'"\u009b31m, \u202e, \u007f, \u001b, café"' in shown and r"\u009b2J\u001b[1m" in shown
    assert all(char.isprintable() or char == "\n" for char in shown)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("ls", ("[red]red[/red]", r"[/b]\x1b[2J", r"\x1b]0;title\x07", r"\x9b2J[/b]")),
        ("stats", ("[red]red[/red]", r"\x1b]0;title\x07")),
        ("doctor", (r"\x9b2J[/b]",)),
    ],
)
def test_what_others_have_stored_in_the_catalogue_is_shown_as_it_is(
    command: str, shown: tuple[str, ...], tubes_: Command, tmp_path: Path
) -> None:
    """The file may come from anywhere: its names are no markup, command no terminal, and cause no error."""
    for name in ("red", "closed", "title", "damaged"):
        tubes_("create", name)
    with sqlite3.connect(tmp_path / "q.db") as db:
        rename = "UPDATE tubes_tube SET name = ?, type = ? WHERE name = ?"
        db.execute(rename, ("[red]red[/red]", "fifo", "red"))
        db.execute(rename, ("[/red]", "[/b]\x1b[2J", "closed"))
        db.execute(rename, ("\x1b]0;title\x07", "fifo", "title"))
        db.execute("UPDATE tubes_tube SET name = '\x9b2J[/b]', options = '[' WHERE name = 'damaged'")
    db.close()
    said = tubes_(command)
    for text in shown:
        assert text in said.out
    assert all(char.isprintable() or char == "\n" for char in said.out + said.err)


def test_a_line_of_json_commands_no_terminal_and_means_the_same(tubes_: Command) -> None:
    text = "\x9b2J\x1b[2J\x7f\x80\x9f\xa0 caf\u00e9 \u2603 \u2028\u2029\u202e\u2066"
    tubes_("create", "jobs")
    tubes_("put", "jobs", json.dumps(text))
    said = tubes_("take", "jobs", "--ack")
    assert said.json()["data"] == text and "café ☃" in said.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", said.out)


def test_a_line_is_json_whatever_others_have_put(tubes_: Command, tmp_path: Path) -> None:
    """Python reads numbers that it would write in a form that is not JSON."""
    tubes_("create", "jobs")
    tubes_("put", "jobs", "0")
    with closing(sqlite3.connect(tmp_path / "q.db")) as db, db:
        db.execute("""UPDATE tubes_task SET data = '[1e999, {"a": -1e999}, NaN, 1.5]'""")
    assert '"data": [1e999, {"a": -1e999}, null, 1.5]' in tubes_("take", "jobs", "--ack").out


def test_ls_tells_an_empty_sub_queue_name_from_none(tubes_: Command) -> None:
    tubes_("create", "sites", "utube")
    tubes_("put", "sites", "1")
    tubes_("put", "sites", "2", "--utube", "")
    assert [task["utube"] for task in values(tubes_("ls", "sites", "--json").out.encode())] == [None, ""]
    assert tubes_("ls", "sites").out.count('""') == 1


@pytest.mark.parametrize("type", ["foreign", "", "redis"])
def test_ls_shows_a_tube_whose_type_is_not_registered_here(
    type: str, tubes_: Command, tmp_path: Path
) -> None:
    """Or one whose type needs an option that its entry lacks."""
    tubes_("create", "jobs")
    with sqlite3.connect(tmp_path / "q.db") as db:
        db.execute("UPDATE tubes_tube SET type = ?", (type,))
    db.close()
    assert f" {type or '?'} (not registered here)" in tubes_("ls").out
    assert tubes_("ls", "--json").json()["tasks"] is None
    assert tubes_("put", "jobs", "1").status == USAGE


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_a_tube_that_is_dropped_meanwhile_hides_no_other(
    command: str, tubes_: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tubes.Queue.tubes

    def list_and_drop(queue: tubes.Queue) -> list[str]:
        names = listed(queue)
        with tubes.connect(f"sqlite:///{tmp_path}/q.db", sweep=False) as other:
            other.drop_tube("gone")
        return names

    tubes_("create", "gone")
    tubes_("create", "jobs")
    monkeypatch.setattr(tubes.Queue, "tubes", list_and_drop)
    said = tubes_(command)
    assert (said.status, said.err) == (0, "")
    assert "jobs" in said.out and "gone" not in said.out


def test_what_can_be_read_can_be_shown(tubes_: Command, tmp_path: Path) -> None:
    """However deeply it is nested: with a few levels more it could not be read."""

    def nested(depth: int, inner: str = "0") -> str:
        return f"{'[' * depth}{inner}{']' * depth}"

    most = bisect.bisect_left(range(100_000), True, key=lambda depth: bool(why_unreadable(nested(depth))))
    data = nested(most - 10, '{"é": [1.5, null, {"a": "b", "c": {}}], "d": [[], true]}')
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    with sqlite3.connect(tmp_path / "q.db") as db:
        db.execute("UPDATE tubes_task SET data = ?", (data,))
    db.close()
    assert "[" * 57 + "..." in tubes_("ls", "jobs").out
    taken = tubes_("take", "jobs", "--ack")
    assert (taken.status, taken.err) == (0, "") and f'"data": {data},' in taken.out


def test_stats_are_tarantools(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    assert tubes_("stats", "jobs", "--json").json()["tasks"]["ready"] == 1
    assert tubes_("stats", "--json").json()["jobs"]["calls"]["put"] == 1
    shown = tubes_("stats").out
    assert "ready" in shown and "put" in shown


def test_bury_kick_peek_and_delete_ask_for_no_session(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    assert tubes_("bury", "jobs", "1", "--json").json()["state"] == "buried"
    assert tubes_("kick", "jobs", "0").out == "0\n"
    assert tubes_("kick", "jobs", "5").out == "1\n"
    assert tubes_("kick", "jobs", "--json").json() == {"kicked": 0}
    assert tubes_("peek", "jobs", "1", "--json").json()["state"] == "ready"
    assert tubes_("delete", "jobs", "1").status == 0
    said = tubes_("peek", "jobs", "1")
    assert (said.status, said.out) == (REFUSED, "")


def test_truncate_removes_all_tasks_and_keeps_the_tube(tubes_: Command) -> None:
    tubes_("create", "jobs")
    for data in "123":
        tubes_("put", "jobs", data)
    tubes_("bury", "jobs", "2")
    tubes_("take", "jobs")
    assert tubes_("truncate", "jobs").out == "3\n"
    assert tubes_("truncate", "jobs", "--json").json() == {"removed": 0}
    assert tubes_("stats", "jobs", "--json").json()["tasks"]["total"] == 0
    said = tubes_("truncate", "others")
    assert (said.status, said.out) == (REFUSED, "")


def test_release_touch_and_ack_need_the_session_that_took(tubes_: Command) -> None:
    tubes_("create", "jobs", "fifottl", "--ttl", "600", "--ttr", "60")
    tubes_("put", "jobs", "1")
    session = tubes_("take", "jobs").json()["session"]
    assert tubes_("release", "jobs", "1").status == USAGE
    touched = tubes_("touch", "jobs", "1", "--by", "30", "--session", session, "--json").json()
    assert touched["ttr"] == 90
    said = tubes_("touch", "jobs", "1", "--by", "0", "--session", session, "--json")
    assert (said.status, said.out, said.err) == (0, "", "")  # nothing is done
    said = tubes_("release", "jobs", "7", "1", "--session", session, "--delay", "5", "--json")
    assert said.status == REFUSED
    assert "task 7" in said.err
    assert said.json()["state"] == "delayed"
    tubes_("put", "jobs", "2")
    task = tubes_("take", "jobs").json()
    acked = tubes_("ack", "jobs", str(task["id"]), "--session", task["session"], "--json").json()
    assert (acked["id"], acked["state"]) == (task["id"], "done")


def test_drop_refuses_while_tasks_are_taken(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    tubes_("take", "jobs")
    refused = tubes_("drop", "jobs")
    assert refused.status == REFUSED
    assert "1 of its tasks are taken" in refused.err
    tubes_("delete", "jobs", "1")
    assert tubes_("drop", "jobs", "--json").json() == {"dropped": "jobs"}
    assert tubes_("ls", "--json").out == ""
    tubes_("create", "jobs")
    assert tubes_("drop", "jobs") == Said(0, "", "")


def test_migrate_prints_sql_that_makes_the_tables(tubes_: Command, tmp_path: Path) -> None:
    sql = tubes_("migrate", "--sql", "--namespace", "mine").out
    assert tubes_("migrate", "--sql", "--namespace", "mine", "--json").json() == {"sql": sql.rstrip("\n")}
    assert not (tmp_path / "q.db").exists()
    db = sqlite3.connect(tmp_path / "q.db")
    db.executescript(sql)
    db.close()
    with tubes.connect(f"sqlite:///{tmp_path}/q.db", namespace="mine", migrate=False) as queue:
        assert queue.tubes() == []


def test_migrate_brings_a_store_up(tubes_: Command, tmp_path: Path) -> None:
    for namespace in ("tubes", "mine"):
        assert tubes_("migrate", "--namespace", namespace, "--json").json() == {"migrated": namespace}
        assert tubes_("migrate", "--namespace", namespace) == Said(0, "", "")
        tubes.connect(f"sqlite:///{tmp_path}/q.db", namespace=namespace, migrate=False).close()


def test_on_redis_there_is_nothing_to_migrate(tubes_: Command, redis_db: str) -> None:
    assert tubes_("migrate", "--url", redis_db).status == 0
    told = tubes_("migrate", "--sql", "--url", redis_db)
    assert (told.status, told.out) == (USAGE, "") and "no SQL" in told.err


def test_a_tube_of_type_redis_is_given_its_server(tubes_: Command, redis_db: str) -> None:
    assert tubes_("create", "hot", "redis", "--option", f"url={redis_db}").status == 0
    tubes_("put", "hot", "1")
    assert json.loads(tubes_("take", "hot", "--ack", "--json").out)["data"] == 1


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_a_tube_whose_server_is_away_hides_no_other(
    command: str, tubes_: Command, own_redis_server: Callable[..., RedisServer]
) -> None:
    server = own_redis_server()
    tubes_("create", "hot", "redis", "--option", f"url={server.url}")
    tubes_("create", "jobs")
    server.stop("immediate")
    table, lines = tubes_(command), tubes_(command, "--json")
    assert "jobs" in table.out and '"jobs"' in lines.out
    for said in (table, lines):
        assert said.status == UNAVAILABLE
        assert said.err.startswith("tubes: tube 'hot': ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["put", "jbos", "1"], REFUSED, "did you mean 'jobs'?"),
        (["create", "x", "fifoo"], USAGE, "did you mean 'fifo'?"),
        (["create", "x", "fifo", "--ttl", "3"], USAGE, "does not support 'ttl'"),
        (["create", "1x"], USAGE, "bad tube name '1x'"),
        (["ls", "sqlite:///jobs.db"], USAGE, "a store's URL: pass it with --url"),
        (["create", "x", "redis", "--option", "url"], USAGE, "'url' is not NAME=VALUE"),
        (["create", "x", "redis", "--option", "url=sqlite://"], USAGE, "redis://host:6379/0"),
        (["create", "x", "redis", "--option", "server=redis://"], USAGE, "no option 'server'"),
        (["put", "jobs", "{bad"], USAGE, "not JSON (Expecting property name"),
        (["put", "jobs", "hello"], USAGE, """text needs quotes of its own: '"text"': hello"""),
        (["put", "jobs", "NaN"], USAGE, "not a finite number"),
        (["put", "jobs", "1", "--delay", "1m"], USAGE, "'1m' is not a valid number of seconds"),
        (["kick", "jobs", "all"], USAGE, "'all' is not a valid number."),
        (
            ["put", "jobs", "1", "--delay", "3"],
            USAGE,
            "tubes: put into fifo tube 'jobs' does not support 'delay'",
        ),
        (["putt", "jobs", "1"], USAGE, "did you mean 'put'?"),
        (["take", "jobs", "--session", "me"], USAGE, "a session is a UUID"),
        (["take", "jobs", "--session", "00000000-0000-4000-8000-000000000000"], REFUSED, "unknown"),
        (["take", "jobs", "--count", "0"], USAGE, "--count"),
        (["take", "jobs", "--all", "--count", "3"], USAGE, "--all has no limit"),
        (["ack", "jobs", "1"], USAGE, "--session"),
        (["delete", "jobs", "99"], REFUSED, "no task 99"),
        (
            ["create", "mine", "fifo", "--option", "temporary=yes"],
            USAGE,
            "'temporary' is not an option of a type",
        ),
        (["create", "mine", "fifo", "--option", "self="], USAGE, "'self' is not an option of a type"),
        (["--namespace", "my-shop", "ls"], USAGE, "bad namespace 'my-shop'"),
        (["--namespace", "my-shop", "migrate", "--sql"], USAGE, "bad namespace 'my-shop'"),
        (["--url", "nonsense", "ls"], USAGE, "sqlite:///tasks.db"),
        (
            ["--url", "sqlite:///jobs.db?timeout=3", "ls"],
            USAGE,
            "bad SQLite URL 'sqlite:///jobs.db?timeout=3'",
        ),
        (["--url", "nosql://x", "ls"], USAGE, "there are: postgresql, redis, rediss, sqlite, unix"),
        (["--url", "sqlite:////nowhere/at/all.db", "ls"], UNAVAILABLE, "/nowhere/at/all.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_clear_line(
    arguments: list[str], status: int, told: str, tubes_: Command
) -> None:
    tubes_("create", "jobs")
    said = tubes_(*arguments)
    assert said.status == status
    assert told in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert values(tubes_("ls", "--json").out.encode())[0]["tasks"]["total"] == 0


def test_a_mistyped_path_is_told_and_makes_no_file(tubes_: Command, tmp_path: Path) -> None:
    for arguments in (["ls"], ["put", "jobs", "1"], ["take", "jobs"], ["stats"], ["kick", "jobs"]):
        said = tubes_("--url", f"sqlite:///{tmp_path}/mistyped.db", *arguments)
        assert said.status == UNAVAILABLE
        assert "no such file" in said.err and "mistyped.db" in said.err and "tubes create" in said.err
    assert tubes_("--url", f"sqlite+pysqlite:///{tmp_path}/mistyped.db", "ls").status == UNAVAILABLE
    said = tubes_("--url", f"sqlite:///{tmp_path}/\x1b[31m.db", "ls")
    assert "\\x1b[31m.db" in said.err and "\x1b" not in said.err  # it colours no terminal
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["ls", "put", "take", "stats", "doctor"])
def test_a_database_without_tubes_is_told_and_left_as_it_is(
    verb: str, tubes_: Command, tmp_path: Path
) -> None:
    """It is another program's, or lacks this namespace."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE orders (id)")
    before = path.read_bytes()
    name = {"put": ["jobs", "1"], "take": ["jobs", "--timeout", "0"]}.get(verb, [])
    said = tubes_("--url", f"sqlite:///{path}", verb, *name)
    assert said.status == UNAVAILABLE
    migrate = f"tubes migrate --url sqlite:///{path}"
    assert said.err == f"tubes: SQLite file {path} has no schema, but needs 0001: run `{migrate}`\n"
    assert path.read_bytes() == before
    assert tubes_("--url", f"sqlite:///{path}", "create", "jobs", "fifo").status == 0
    assert tubes_("--url", f"sqlite:///{path}", verb, *name).status in (0, REFUSED)


def test_a_file_that_is_no_database_is_told(tubes_: Command, tmp_path: Path) -> None:
    (tmp_path / "q.db").write_bytes(b"something else entirely" * 100)
    said = tubes_("ls")
    assert said.status == UNAVAILABLE
    assert "q.db" in said.err and len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://me:s3%40cret@host/x",
        "nosql://me:s3%40cret@host/x",
        "me:s3%40cret@[host",
        "host/x?password=s3cret",
        "postgresql+psycopg:///me:s3cret@host/x",
        "postgresql://me:s3%40cret@host/x?no_such=1",
    ],
)
def test_a_password_is_never_printed(url: str, tubes_: Command) -> None:
    said = tubes_("--url", url, "ls")
    assert said.status == USAGE
    assert "cret" not in said.err + said.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("redis://me:s3cret@host/0",),
        ("ls", "jobs", "redis://me:s3cret@host/0"),
        ("ls", "--state", "redis://me:s3cret@host/0"),
        ("ls", "--state", "redis:///me:s3cret@host/0"),
        ("migrate", "--sql", "--namespace", "redis://host/0?password=s3cret"),
        ("kick", "jobs", "redis://me:s3/cret@host/0"),
        ("create", "hot", "redis://me:s3?cret@host/0"),
        ("create", "hot", "redis", "--option", "redis://me:s3cret@host/0"),
        ("create", "hot", "redis", "--option", "redis://me:s3\\cret@host?x=1"),
        ("create", "hot", "redis://me:s3\ncret@host/0"),
        ("ls", "jobs", "redis://me:s3\ncret@host/0"),
        ("kick", "jobs", "redis://host:1/0?password=s3@cret"),
        ("kick", "jobs", "postgresql://host/x?scram_client_key=s3cret"),
    ],
)
def test_a_password_is_never_printed_wherever_it_was_given(
    arguments: tuple[str, ...], tubes_: Command
) -> None:
    said = tubes_(*arguments)
    assert said.status == USAGE
    assert "cret" not in said.err + said.out and "***" in said.err


def test_a_password_is_hidden_as_it_is_written_and_as_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another URL's password may be a part of it."""
    monkeypatch.setattr("tubes.cli_output._secrets", set())
    for password in ("s3", "s3%40cret"):
        keep_secret(f"redis://me:{password}@host/0")
    assert without_secrets("s3%40cret, s3@cret, s3") == "***, ***, ***"


def test_a_password_is_hidden_that_begins_in_the_middle_of_what_seems_to_be_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One way to read this URL takes all between the host and the @ for the password."""
    monkeypatch.setattr("tubes.cli_output._secrets", set())
    url = "redis://host:1/0?password=s3@cret"
    keep_secret(url)
    assert without_secrets(f"{url}, s3@cret") == "redis://host:***, ***"


def test_of_a_long_value_that_is_none_the_beginning_is_told(tubes_: Command) -> None:
    tubes_("create", "jobs")
    said = tubes_("put", "jobs", "{" + "x" * 5000)
    assert said.status == USAGE and "{" + "x" * 56 + "..." in said.err and len(said.err) < 300


@pytest.mark.parametrize(
    "arguments",
    [("put", "jobs", "\x1b]0;x\x07 \x9b31m \u202e"), ("ls", "jobs", "\x1b[2J \x9b31m \u202e")],
    ids=["data", "more"],
)
def test_no_terminal_obeys_what_is_shown_of_a_bad_argument(
    arguments: tuple[str, ...], tubes_: Command
) -> None:
    tubes_("create", "jobs")
    said = tubes_(*arguments)
    assert said.status == USAGE and r"\x9b31m \u202e" in said.err
    assert all(char.isprintable() for char in said.err.replace("\n", ""))


def test_a_task_that_is_not_there_keeps_nobody_from_the_others(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    said = tubes_("delete", "jobs", "--json", "99", "1")
    assert (said.status, said.json()["id"]) == (REFUSED, 1)
    assert "99" in said.err


def test_calls_that_were_never_made_are_left_out_of_the_table(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", "1")
    shown = tubes_("stats", "jobs").out
    assert "put" in shown and "kick" not in shown


def test_an_empty_url_in_the_environment_is_none(
    tubes_: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUBES_URL", "")
    monkeypatch.chdir(tmp_path)
    assert tubes_("create", "jobs").status == 0
    assert (tmp_path / "tubes.db").exists()


def test_a_warning_is_one_line_without_a_place_in_the_code(shell: Shell) -> None:
    said = shell.run("create", "short", "fifottl", "--ttl", "5")
    assert said.returncode == 0
    assert said.stderr.startswith(b"tubes: warning: tube 'short' has a ttl and no ttr")
    assert said.stderr.count(b"\n") == 1


def test_what_is_logged_is_one_line_with_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    told = StderrHandler()
    told.emit(logging.makeLogRecord({"msg": "%s failed", "args": ("it",)}))
    error = OSError("no room")
    told.emit(logging.makeLogRecord({"msg": "so did this", "exc_info": (OSError, error, None)}))
    assert capfd.readouterr().err == "tubes: it failed\ntubes: so did this (no room)\n"


@pytest.mark.slow
def test_a_warning_ends_nothing_where_warnings_are_errors(shell: Shell) -> None:
    """The tube is made, as without PYTHONWARNINGS."""
    command = shell.installed("create", "short", "fifottl", "--ttl", "5")
    environment = {**shell.environment, "PYTHONWARNINGS": "error"}
    said = subprocess.run(command, env=environment, capture_output=True, timeout=30)
    assert (said.returncode, said.stdout) == (0, b"")
    assert said.stderr.startswith(b"tubes: warning: tube 'short' has a ttl and no ttr")


@pytest.mark.slow
def test_a_warning_can_be_silenced(shell: Shell) -> None:
    command = shell.installed("create", "short", "fifottl", "--ttl", "5")
    environment = {**shell.environment, "PYTHONWARNINGS": "ignore"}
    said = subprocess.run(command, env=environment, capture_output=True, timeout=30)
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


def test_a_table_on_a_narrow_terminal_shows_all_the_same(shell: Shell, jobs: tubes.Tube) -> None:
    jobs.put_many([71, 72])
    ours, theirs = pty.openpty()
    shell.environment["COLUMNS"] = "20"
    process = shell.start("ls", "jobs", stdout=theirs)
    os.close(theirs)
    drawn = drawn_on(ours)
    assert process.wait(20) == 0
    assert " 71 " in drawn and " 72 " in drawn


def test_a_table_is_as_wide_as_it_must_be_when_it_goes_to_a_file(tubes_: Command) -> None:
    tubes_("create", "jobs")
    tubes_("put", "jobs", json.dumps("x" * 50))
    assert f'"{"x" * 50}"' in tubes_("ls", "jobs").out
