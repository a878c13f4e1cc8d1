"""The ``tubes`` command: the verbs of a queue for shells and pipes."""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import click

import tubes
from tubes.cli_output import Closed, keep_secret, line, printable, say, without_secrets, write_line
from tubes.cli_pipes import Putting, Taking, base64_payload, json_value, task_as_json
from tubes.cli_process import Terminated, set_up, stop_sending_again
from tubes.cli_tables import add_row, print_table, print_tasks, short, table_of
from tubes.clock import pause
from tubes.errors import suggestion
from tubes.options import seconds, tube_name
from tubes.registry import find_store
from tubes.task import STORED, State

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "sqlite:///tubes.db"

KEPT_FOR = 60.0
"""Seconds for which a task that was taken without --ack stays taken after the command has ended."""

REFUSED, USAGE, UNAVAILABLE, BAD_INPUT = 1, 2, 3, 4
INTERRUPTED, CLOSED, TERMINATED = 130, 141, 143

UNUSABLE = "cannot be used"
"""Why a tube shows no counts: its tasks' own server is unreachable, or its catalogue entry is damaged."""

EXIT_CODES = f"""\b
Exit status:
    0  done
    {REFUSED}  refused, nothing taken, or something found by the doctor
    {USAGE}  wrong usage
    {UNAVAILABLE}  the store cannot be used
    {BAD_INPUT}  some lines of the input were bad (the others are stored)
  {INTERRUPTED}  Ctrl-C   {CLOSED}  nobody reads the output, or it cannot be written   {TERMINATED}  TERM"""


# Where the queue is


@dataclass
class Target:
    """Which store a command works on."""

    url: str = DEFAULT_URL
    namespace: str = "tubes"

    def connect(self, *, makes_file: bool = False, sweep: bool = True) -> tubes.Queue:
        """Open the store; make its file and tables only if asked to, as a mistyped path is no empty queue."""
        file = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)", self.url)  # with a query: connect refuses it
        path = unquote(file[1]) if file else ""
        is_made = makes_file or path in ("", ":memory:")
        if not is_made and not Path(path).exists():
            raise tubes.StoreUnavailable(
                f"no such file: {path}; 'tubes create' creates it with its first tube"
            )
        migrate = None if is_made else False
        return tubes.connect(self.url, namespace=self.namespace, sweep=sweep, migrate=migrate)


class Seconds(click.types.FloatParamType):
    """A duration."""

    name = "number of seconds"


class Number(click.IntRange):
    """How many."""

    name = "number"


target = Target()
"""One command, one store; set from the options before any command runs."""


def _set(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(target, name, value)
            if name == "url":
                keep_secret(value)

    return keep


def with_target(command: F) -> F:
    """Add the options that say where the queue is; they may stand before or after the command's name."""
    url = click.option(
        "--url",
        expose_value=False,
        callback=_set("url"),
        metavar="URL",
        help=f"The store.  [env: TUBES_URL; default: {DEFAULT_URL}]",
    )
    namespace = click.option(
        "--namespace",
        expose_value=False,
        callback=_set("namespace"),
        metavar="NAME",
        help="Prefix of the tables or keys in the store.  [default: tubes]",
    )
    return url(namespace(command))


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
in_session = click.option(
    "--session",
    envvar="TUBES_SESSION",
    show_envvar=True,
    required=True,
    metavar="UUID",
    help="The session that took the task; `tubes take` prints it.",
)


def _name_of_tube(context: click.Context, argument: click.Parameter, name: str | None) -> str | None:
    if name is not None and "://" in name:  # not shown: it may hold a password
        raise click.BadParameter("this looks like a store's URL: pass it with --url")
    return name


name_argument = click.argument("name", callback=_name_of_tube)
name_if_any = click.argument("name", metavar="[NAME]", required=False, callback=_name_of_tube)
ids_argument = click.argument("ids", nargs=-1, required=True, type=int, metavar="ID...")


# The command and its parts


class Commands(click.Group):
    """The commands, in the order in which one meets them, with a suggestion for a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            raise click.UsageError(f"no command {args[0]!r}{suggestion(args[0], self.commands)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@with_target
@click.version_option(tubes.__version__, prog_name="tubes")
def cli() -> None:
    """Queues of tasks on a database: a plain SQLite file by default.

    \b
    Try it:
      tubes create jobs fifo
      tubes put jobs '{"hello": "world"}'
      tubes take jobs --ack
      tubes demo

    \b
    In pipes, one JSON value a line:
      cat urls.ndjson | tubes put jobs
      tubes take jobs --ack --all --timeout 5 | jq .data
    """


def command(function: F) -> F:
    """Make a function a command of the same name."""
    return cast("F", cli.command()(with_target(function)))


@command
@name_argument
@click.argument("type", default="fifo")
@click.option("--ttl", type=Seconds(), metavar="SECONDS", help="How long its tasks live.")
@click.option("--ttr", type=Seconds(), metavar="SECONDS", help="A taken task comes back after this.")
@click.option("--pri", type=int, metavar="N", help="Priority of its tasks, 0 first.")
@click.option("--capacity", type=int, metavar="N", help="Maximum number of tasks it holds.")
@click.option(
    "--option",
    "own",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option specific to the type, such as url for redis.",
)
@click.option(
    "--temporary",
    is_flag=True,
    help="Its tasks do not outlive the last process that has the file open; on a server, a restart.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if a tube of that name and type exists.")
@as_json
def create(
    name: str,
    type: str,
    own: tuple[str, ...],
    temporary: bool,
    if_not_exists: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a tube.

    TYPE is fifo (the default), fifottl, limfifottl, utube, utubettl, redis, or your own.

    \b
      tubes create jobs
      tubes create sites utubettl --ttl 3600 --ttr 60
      tubes create mails limfifottl --capacity 1000 --if-not-exists
      tubes create hot redis --option url=redis://localhost:6379/0
    """
    tube_name(name)  # before the store is made
    given = {option: value for option, value in options.items() if value is not None}
    for pair in own:
        option, is_pair, value = pair.partition("=")
        if not is_pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--option")
        if option in inspect.signature(tubes.Queue.create_tube).parameters:  # such as temporary
            raise click.BadParameter(f"{option!r} is not an option of a type", param_hint="--option")
        given[option] = value
    with target.connect(makes_file=True) as queue:
        tube = queue.create_tube(name, type, temporary=temporary, if_not_exists=if_not_exists, **given)
        if as_json:
            write_line(line({"name": tube.name, "type": tube.type, "options": dict(tube.record.options)}))


@command
@name_if_any
@click.option(
    "--state", type=click.Choice([state.name.lower() for state in STORED]), help="Only tasks in this state."
)
@click.option("--limit", type=Number(min=1), default=100, show_default=True, help="Maximum tasks per state.")
@as_json
def ls(name: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """List the tubes, or the tasks of one.

    \b
      tubes ls
      tubes ls jobs --state buried
      tubes ls jobs --json | jq .id
    """
    with target.connect() as queue:
        if name is None:
            list_tubes(queue, as_json)
            return
        tube = queue.get_tube(name)
        states = STORED if state is None else (State[state.upper()],)
        found = [tube.tasks(wanted, limit=limit) for wanted in states]
        tasks = sorted((task for some in found for task in some), key=lambda task: task.id)
        print_tasks(tasks, f"Tasks in {name} ({tube.type}), times in UTC", as_json)
        if any(len(some) == limit for some in found) and not as_json:
            say(f"at most {limit} of each state are shown; there may be more, see --limit and 'tubes stats'")


def list_tubes(queue: tubes.Queue, is_json: bool) -> None:
    table = table_of("Tubes", "name", "type", ">ready", ">taken", ">delayed", ">buried", ">done")
    records = queue.records()
    found, missing = statistics_of_all(queue)
    for record in records:
        if record.name not in found and record.name not in missing:
            continue  # dropped since
        counts = found[record.name]["tasks"] if record.name in found else None
        if is_json:
            row = {"name": record.name, "type": record.type, "options": dict(record.options), "tasks": counts}
            write_line(line(row))
        elif counts is None:
            add_row(table, record.name, f"{record.type or '?'} ({missing[record.name]})")
        else:
            states = (str(counts[state]) for state in ("ready", "taken", "delayed", "buried", "done"))
            add_row(table, record.name, record.type, *states)
    if not is_json:
        print_table(table)
    exit_if_away(missing)


def statistics_of_all(queue: tubes.Queue) -> tuple[dict[str, Any], dict[str, str]]:
    """The statistics of each tube, and why others have none; a server that is down is reported."""
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    names, together = queue.tubes(), dict[str, Any]()
    with suppress(tubes.StoreError):  # if one fails, each is asked by itself
        together = queue.statistics()
    for name in names:
        try:
            found[name] = together.get(name) or queue.statistics(name)
        except (tubes.UnknownDriver, tubes.IncompleteDriver, tubes.BadOption):
            missing[name] = "not registered here"
        except tubes.StoreError as error:
            missing[name] = UNUSABLE
            say(f"tube {name!r}: {error}")
        except tubes.NoSuchTube:
            pass  # dropped since
    return found, missing


def exit_if_away(missing: Mapping[str, str]) -> None:
    """End with the exit status for a server that is down, if one is: what could be shown has been."""
    if UNUSABLE in missing.values():
        raise click.exceptions.Exit(UNAVAILABLE)


# Putting


@command
@name_argument
@click.argument("data", required=False)
@click.option("--pri", type=int, metavar="N", help="Priority, 0 first.")
@click.option("--ttl", type=Seconds(), metavar="SECONDS", help="How long the task lives.")
@click.option("--ttr", type=Seconds(), metavar="SECONDS", help="Once taken, it comes back after this.")
@click.option("--delay", type=Seconds(), metavar="SECONDS", help="It becomes ready after this.")
@click.option("--utube", metavar="NAME", help="The sub-queue.")
@click.option(
    "--timeout", type=Seconds(), metavar="SECONDS", help="How long to wait for room in a full tube."
)
@click.option("--bytes", "as_bytes", is_flag=True, help="Read base64; the payloads are the decoded bytes.")
@as_json
def put(name: str, data: str | None, as_bytes: bool, as_json: bool, **options: Any) -> None:
    """Put one JSON value, or every line of input.

    Puts DATA, one JSON value, into the tube NAME; without DATA, or for -, every line of standard input.

    \b
      tubes put jobs '{"url": "http://example.org/"}'
      tubes put jobs '"text"' --delay 10
      tubes put jobs -- -5
      generate | tubes put jobs
      echo aGVsbG8= | tubes put jobs --bytes

    Lines are stored as they come, up to 500 in a commit. A line that is not JSON is reported with its number
    and not stored; the others are stored, and the exit status is then 4. Empty lines are skipped.

    With --json, the tasks are printed as they are stored; without it, only the id of a task given as DATA.
    """
    given = {option: value for option, value in options.items() if value is not None}
    read = base64_payload if as_bytes else json_value
    with target.connect() as queue:
        tube = queue.get_tube(name)
        if data is None or data == "-":
            tube.put_many((), **given)  # refuse an invalid option, whatever the input
            if Putting(tube, read, given, as_json).run():
                raise click.exceptions.Exit(BAD_INPUT)
            return
        try:
            task = tube.put(read(data), **given)
        except tubes.TubeError:
            raise
        except (ValueError, TypeError) as error:
            raise click.BadParameter(f"{error}: {short(data)}", param_hint="DATA") from error
        write_line(line(task_as_json(task)) if as_json else str(task.id))


# Taking


@command
@name_argument
@click.option("--count", type=Number(min=1), metavar="N", help="Maximum number of tasks.  [default: 1]")
@click.option("--all", "take_all", is_flag=True, help="No limit: end when no task has come within --timeout.")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="Longest wait for each task; 0: do not wait.  [default: for ever]",
)
@click.option("--ack", is_flag=True, help="Ack each task when it is printed.")
@click.option(
    "--session",
    envvar="TUBES_SESSION",
    show_envvar=True,
    metavar="UUID",
    help="Take for a session that exists.",
)
@click.option(
    "--session-ttr",
    type=Seconds(),
    metavar="SECONDS",
    help=f"Without --ack: how long the tasks stay taken after this command.  [default: {KEPT_FOR:.0f}]",
)
@click.option(
    "--json", is_flag=True, expose_value=False, help="Print JSON, one value a line; take always does."
)
def take(
    name: str,
    count: int | None,
    take_all: bool,
    timeout: float | None,
    ack: bool,
    session: str | None,
    session_ttr: float | None,
) -> None:
    """Take tasks and print them, a line of JSON each.

    Takes from the tube NAME. A line has the task's id, its data, and all its other fields.

    \b
      tubes take jobs --ack
      tubes take jobs --ack --all --timeout 0 > all.ndjson
      tubes take jobs --ack --all | while read -r task; do ...; done

    With --ack, tasks are acked once they are written out: give it where the reader of the output can be trusted.
    What could not be written goes back to the tube, whatever ends the command.

    Without --ack, the tasks stay taken for --session-ttr seconds after the command. Finish them meanwhile, or they
    go back to the tube:

    \b
      tubes take jobs --session-ttr 600 > task.json
      tubes ack jobs --session "$(jq -r .session task.json)" "$(jq .id task.json)"
    """
    if take_all and count is not None:
        raise click.UsageError("--all has no limit, --count sets one: give one of them")
    with target.connect() as queue:
        tube = queue.get_tube(name)
        if session is not None:
            queue.identify(session)
        if session_ttr is not None or not (ack or session):
            queue.configure(session_ttr=KEPT_FOR if session_ttr is None else session_ttr)
        taking = Taking(tube, None if take_all else count or 1, timeout, ack)
        printed = taking.run()
    if not printed or taking.late:
        raise click.exceptions.Exit(REFUSED)


# One task, or some


def each(
    name: str, ids: Sequence[int], verb: str, session: str | None, is_json: bool, **options: Any
) -> None:
    """Apply a verb to tasks by id. Refusals are reported; the other tasks are done all the same."""
    refused = False
    with target.connect() as queue:
        tube = queue.get_tube(name)
        if session is not None:
            queue.identify(session)
        tasks = []
        for id in ids:
            try:
                task = getattr(tube, verb)(id, **options)
                if task is not None:
                    tasks.append(task)
            except (tubes.NotTaken, tubes.TaskNotFound) as error:
                refused = True
                say(str(error))
        if is_json or (tasks and verb == "peek"):
            print_tasks(tasks, f"Tasks in {name}, times in UTC", is_json)
    if refused:
        raise click.exceptions.Exit(REFUSED)


@command
@name_argument
@ids_argument
@in_session
@as_json
def ack(name: str, ids: tuple[int, ...], session: str, as_json: bool) -> None:
    """Finish tasks that a session holds.

    \b
      tubes ack jobs --session 6f9c... 12 13
    """
    each(name, ids, "ack", session, as_json)


@command
@name_argument
@ids_argument
@in_session
@click.option("--delay", type=Seconds(), metavar="SECONDS", help="Ready again only after this.")
@as_json
def release(name: str, ids: tuple[int, ...], session: str, delay: float | None, as_json: bool) -> None:
    """Give back tasks that a session holds.

    \b
      tubes release jobs --session 6f9c... 12 --delay 30
    """
    each(name, ids, "release", session, as_json, delay=delay)


@command
@name_argument
@ids_argument
@in_session
@click.option(
    "--by",
    "delta",
    type=click.FloatRange(min=0),
    required=True,
    metavar="SECONDS",
    help="How much more time.",
)
@as_json
def touch(name: str, ids: tuple[int, ...], session: str, delta: float, as_json: bool) -> None:
    """Give tasks that a session holds more time.

    \b
      tubes touch jobs --session 6f9c... 12 --by 60
    """
    each(name, ids, "touch", session, as_json, delta=delta)


@command
@name_argument
@ids_argument
@as_json
def peek(name: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Show tasks and leave them as they are."""
    each(name, ids, "peek", None, as_json)


@command
@name_argument
@ids_argument
@as_json
def bury(name: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Put tasks aside until they are kicked."""
    each(name, ids, "bury", None, as_json)


@command
@name_argument
@ids_argument
@as_json
def delete(name: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Remove tasks, in whatever state they are."""
    each(name, ids, "delete", None, as_json)


@command
@name_argument
@click.argument("count", type=Number(min=0), default=1)
@as_json
def kick(name: str, count: int, as_json: bool) -> None:
    """Make buried tasks ready again.

    Kicks up to COUNT of them (default 1), those next in order, and prints how many it kicked. COUNT is a
    number of tasks, not an id.

    \b
      tubes kick jobs 100
    """
    with target.connect() as queue:
        kicked = queue.get_tube(name).kick(count)
    write_line(line({"kicked": kicked}) if as_json else str(kicked))


@command
@name_argument
@as_json
def truncate(name: str, as_json: bool) -> None:
    """Remove all tasks of a tube, and keep the tube.

    Removes them in whatever state they are, even taken ones, and prints how many there were. Callbacks
    are not called.
    """
    with target.connect() as queue:
        removed = queue.get_tube(name).truncate()
    write_line(line({"removed": removed}) if as_json else str(removed))


@command
@name_argument
@as_json
def drop(name: str, as_json: bool) -> None:
    """Remove a tube and its tasks.

    Refused while tasks are taken.
    """
    with target.connect() as queue:
        queue.drop_tube(name)
    if as_json:
        write_line(line({"dropped": name}))


# The whole


@command
@name_if_any
@click.option(
    "--every",
    type=click.FloatRange(0.1, 86_400),
    metavar="SECONDS",
    help="Look again every so many seconds, until Ctrl-C.",
)
@as_json
def stats(name: str | None, every: float | None, as_json: bool) -> None:
    """Show counts of tasks and calls.

    How many tasks are in each state, and how many calls of each kind there were: of all tubes, or of NAME.
    Calls that were never made are left out of the table.

    \b
      tubes stats jobs --json | jq .tasks.ready
      tubes stats --every 2

    With --every, a terminal shows a table that is kept up to date: how many tasks are in each state, how many were
    put, taken and done per second since the last look, and a curve of how many there were.
    """
    if every is not None:
        seconds("every", every)  # nan is in every range

    def show(chosen: Mapping[str, Any]) -> None:
        if as_json:
            write_line(line(chosen if name is None else chosen[name]))
        else:
            print_statistics(chosen)

    showing: AbstractContextManager[Callable[[Mapping[str, Any]], None]] = nullcontext(show)
    if every is not None and not as_json:
        from tubes.cli_watch import shown_live

        showing = shown_live(show)
    with target.connect(sweep=every is None) as queue, showing as on_look:
        while True:
            chosen, missing = (
                statistics_of_all(queue) if name is None else ({name: queue.statistics(name)}, {})
            )
            on_look(chosen)
            if every is None:
                break
            pause(every)
    exit_if_away(missing)


def print_statistics(chosen: Mapping[str, Mapping[str, Any]]) -> None:
    for part, title in (("tasks", "Tasks"), ("calls", "Calls")):
        keys = [
            key
            for key in next(iter(chosen.values()), {}).get(part, ())
            if part == "tasks" or any(counts[part][key] for counts in chosen.values())
        ]
        table = table_of(title, "tube", *(f">{key}" for key in keys))
        for tube, counts in chosen.items():
            add_row(table, tube, *(str(counts[part][key]) for key in keys))
        print_table(table)


@command
@click.argument("store", metavar="[URL]", required=False, callback=_set("url"), expose_value=False)
@click.option("--deep", is_flag=True, help="Look at every task too, and at the pages of a SQLite file.")
@click.option("--fix", is_flag=True, help="Repair what can be repaired, and show what is left.")
@as_json
def doctor(deep: bool, fix: bool, as_json: bool) -> None:
    """Look for damage in a store, and repair it.

    Finds tasks that nothing leads to, tasks without data, sub-queues that are stuck, wrong counts, and tasks of dead
    owners. It looks in small steps, so others may go on working. URL is another way to say --url.

    \b
      tubes doctor
      tubes doctor --deep --fix
      tubes doctor sqlite:///jobs.db --json | jq .what

    Without --deep, it costs little whatever the backlog. The exit status is 1 if something was found, or with --fix,
    if something is left; 2 if the store cannot be examined, 3 if it cannot be opened.
    """
    from tubes.cli_doctor import Visit

    with target.connect(sweep=False) as queue:
        try:
            visit = Visit(queue, deep, as_json)
            left = visit.repair() if fix else visit.examine()
        except tubes.NotSupported as error:
            raise click.UsageError(str(error)) from error
    if left:
        raise click.exceptions.Exit(REFUSED)


@command
@click.option("--sql", is_flag=True, help="Print the SQL instead; the store is not touched.")
@as_json
def migrate(sql: bool, as_json: bool) -> None:
    """Bring the store's tables up to date.

    A SQLite file is brought up to date whenever a program connects to it, or by 'tubes create'; this command
    does it beforehand. On PostgreSQL no other command does it. Redis has no tables.
    """
    if sql:
        store = find_store(target.url.partition(":")[0])
        print_sql = getattr(store, "migrate_sql", None)
        if print_sql is None:
            raise tubes.NotSupported("this store has no SQL to print", option="sql")
        namespace = tube_name(target.namespace, option="namespace", what="namespace")
        text = print_sql(namespace).rstrip("\n")
        write_line(line({"sql": text}) if as_json else text)
        return
    tubes.connect(target.url, namespace=target.namespace, migrate=True).close()
    if as_json:
        write_line(line({"migrated": target.namespace}))


@cli.command()
@click.option(
    "--pages",
    type=Number(min=50),
    default=1500,
    show_default=True,
    help="Pages to crawl; those under way are finished too.",
)
@click.option("--workers", type=Number(2, 64), default=4, show_default=True, help="Crawlers, a process each.")
@click.option("--hosts", type=Number(2, 64), default=4, show_default=True, help="Hosts of the web site.")
@click.option(
    "--type", default="utube", show_default=True, help="The tube's type; fifo shows what utube is for."
)
@as_json
def demo(pages: int, workers: int, hosts: int, type: str, as_json: bool) -> None:
    """Crawl a web site politely, and prove it.

    Several processes crawl; one is killed in the middle of a page, and nothing is lost.

    The site is Python's own documentation of its library, served on several hosts of this machine. No host may
    get two requests at once, whatever the number of crawlers; the site itself keeps count.
    """
    from tubes import demo as crawl
    from tubes.demo_show import show, shown_live

    with shown_live() if not as_json else nullcontext(lambda progress: None) as on_progress:
        outcome = crawl.run(pages=pages, workers=workers, hosts=hosts, type=type, on_progress=on_progress)
    if as_json:
        write_line(line(outcome.as_json()))
    else:
        show(outcome)
    if not outcome.ok:
        raise click.exceptions.Exit(REFUSED)


# From outside


def main() -> None:
    """Run the command line and exit."""
    set_up()
    status = run(sys.argv[1:])
    stop_sending_again()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; every error becomes one line on stderr."""
    try:
        target.url, target.namespace = os.environ.get("TUBES_URL") or DEFAULT_URL, "tubes"
        keep_secret(target.url)
        for argument in arguments:
            if "://" in argument:  # wherever it is, such as in the place of a command
                keep_secret(argument)
        status = cli.main(list(arguments), prog_name="tubes", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        lines = without_secrets(told.getvalue()).split("\n")  # it may quote an argument as given
        click.echo("\n".join(map(printable, lines)), nl=False, err=True)
        return error.exit_code
    except tubes.TubeError as error:
        said = str(error).replace("pass if_not_exists=True", "pass --if-not-exists")
        say(said.replace(", or connect with migrate=True", ""))
        return status_of(error)
    except Closed:
        return CLOSED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except OSError as error:
        say(str(error))
        return UNAVAILABLE


def status_of(error: tubes.TubeError) -> int:
    if isinstance(error, tubes.StoreError):
        return UNAVAILABLE
    return USAGE if isinstance(error, (tubes.BadOption, tubes.UnknownDriver)) else REFUSED
