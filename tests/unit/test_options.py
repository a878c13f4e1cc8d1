"""Arguments become checked, stored values: seconds to milliseconds, names, whole numbers."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Context, Inexact, Rounded, localcontext
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

import tubes
from tubes import options
from tubes.errors import BadOption, NotSupported
from tubes.feature_options import stored_options
from tubes.testing import FakeClock


class Host(str, Enum):  # noqa: UP042  # a StrEnum shows itself as its text
    SHOP = "shop.example"


class Kind(str, Enum):  # noqa: UP042  # as Host
    MAILS = "mails"


class Customer(int, Enum):
    ANN = 7


@pytest.mark.parametrize("url", ["user:s3cret@host/db", "//user:s3cret@host", ":user:s3cret@host"])
def test_what_is_no_url_is_refused_without_the_password_that_may_be_in_it(url: str) -> None:
    with pytest.raises(BadOption, match="URL") as caught:
        tubes.connect(url)
    assert "s3cret" not in str(caught.value)


def test_a_url_that_is_no_text_is_refused_by_its_type() -> None:
    """SQLAlchemy's own, shown as text, would look like one that is accepted."""
    url: Any = sa.make_url("sqlite:///jobs.db")
    with pytest.raises(BadOption, match="not a value of type URL"):
        tubes.connect(url)


@pytest.mark.parametrize(
    "wrong",
    [{"clock": 0}, {"clock": "UTC"}, {"clock": FakeClock}, {"sweep": "no"}, {"sweep": 0}, {"migrate": "no"}],
)
def test_an_option_of_connect_that_cannot_be_is_refused_and_no_file_is_made(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    [(option, value)] = wrong.items()
    with pytest.raises(BadOption, match=f"{option}.*{re.escape(repr(value))}") as caught:
        tubes.connect(f"sqlite:///{tmp_path}/queue.db", **wrong)
    assert caught.value.option == option
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["if_not_exists", "temporary"])
def test_yes_or_no_is_neither_text_nor_number_and_no_tube_is_made(option: str) -> None:
    with tubes.connect("sqlite://") as queue:
        for value in ("no", 1, None):
            wrong: dict[str, Any] = {option: value}
            with pytest.raises(BadOption, match=f"{option} must be True or False, not {value!r}"):
                queue.create_tube("jobs", "fifo", **wrong)
        assert queue.tubes() == []


@pytest.mark.parametrize("name", ["a", "_", "jobs", "Jobs_2", "a" * 32])
def test_letters_digits_and_underscores_make_a_tube_name(name: str) -> None:
    assert options.tube_name(name) == name


def test_a_member_of_an_enumeration_names_by_its_text() -> None:
    """In an f-string it would be Kind.MAILS, which no statement accepts as a name."""
    name = options.tube_name(Kind.MAILS)
    assert (type(name), name) == (str, "mails")
    with tubes.connect("sqlite://", namespace=Kind.MAILS) as queue:
        assert repr(queue.create_tube(Kind.MAILS, "fifo")) == "<Tube mails (fifo)>"


@pytest.mark.parametrize(
    "name", ["", "2jobs", "a" * 33, "a b", "a.b", "a-b", "jobs\n", "größe", "a;drop", None, 7, b"jobs"]
)
def test_anything_else_is_no_tube_name_and_the_error_shows_it(name: object) -> None:
    with pytest.raises(BadOption) as caught:
        options.tube_name(name)
    assert repr(name) in str(caught.value)
    assert caught.value.option == "name"
    assert caught.value.value == name


@pytest.mark.parametrize(
    ("seconds", "stored"),
    [
        (0, 0),
        (1, 1000),
        (1.5, 1500),
        (0.0001, 1),
        (0.0011, 2),
        (60.1, 60100),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_seconds_become_milliseconds(seconds: object, stored: int) -> None:
    assert options.milliseconds("ttl", seconds) == stored


@given(st.integers(0, 10**12))
def test_a_duration_that_is_whole_milliseconds_stays_exact(ms: int) -> None:
    """Seconds are floats: 0.1 s is a hair more than 100 ms, and must not become 101."""
    assert options.milliseconds("ttl", ms / 1000) == ms


def test_an_application_that_rounds_its_decimals_rounds_no_duration() -> None:
    """Its context may also trap what is inexact."""
    with localcontext(Context(prec=2, traps=[Inexact, Rounded])):
        assert options.milliseconds("ttl", 86400.5) == 86_400_500
        assert options.milliseconds("ttl", 0.0011) == 2


@given(st.floats(0, 1e9))
@example(100_000_000.61700031)
def test_nothing_ends_early(seconds: float) -> None:
    """Durations are rounded up, except beyond the fifteen digits that a float is good for."""
    beyond = Fraction(5, 10**15)  # at most, of a number: half a unit of its fifteenth digit
    assert options.milliseconds("ttl", seconds) >= Fraction(seconds) * (1 - beyond) * 1000


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        "1",
        None,
        True,
        [],
        1e300,
        2.0**53 / 1000 + 1,
        2**53 // 1000 + 1,
        1e13,
        pytest.param(10**5000, id="of thousands of digits"),
    ],
)
def test_what_is_no_duration_is_refused_by_the_options_name(value: object) -> None:
    with pytest.raises(BadOption, match=r"^ttl must be") as caught:
        options.milliseconds("ttl", value)
    assert caught.value.option == "ttl"
    assert isinstance(caught.value, ValueError)


def test_none_means_never_where_that_is_allowed() -> None:
    assert options.optional_milliseconds("ttl", None) is None
    assert options.optional_milliseconds("ttl", 2) == 2000


@pytest.mark.parametrize(
    ("given_", "meant"),
    [
        (None, None),
        (math.inf, None),
        (0, 0.0),
        (-3, 0.0),
        (-math.inf, 0.0),
        (2, 2.0),
        (timedelta(seconds=3), 3.0),
        (timedelta(seconds=-3), 0.0),
    ],
)
def test_a_takes_timeout_may_be_for_ever_and_a_negative_one_tries_once(
    given_: object, meant: float | None
) -> None:
    assert options.timeout_seconds(given_) == meant


@pytest.mark.parametrize("value", ["1", True, math.nan, object()])
def test_a_timeout_that_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(BadOption, match=r"^timeout must be"):
        options.timeout_seconds(value)


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1])
def test_whole_numbers_are_kept(value: int) -> None:
    assert options.whole("pri", value) == value


class Level(int, Enum):
    LOW = 2


class Share(float, Enum):
    HALF = 0.5


def test_members_of_enumerations_are_the_numbers_that_they_stand_for() -> None:
    """A store that turned them into text would store their names."""
    numbers = (
        options.whole("pri", Level.LOW),
        options.milliseconds("ttl", Level.LOW),
        options.milliseconds("ttl", Share.HALF),
        options.timeout_seconds(Share.HALF),
    )
    assert [f"{number}" for number in numbers] == ["2", "2000", "500", "0.5"]
    assert options.sub_queue(Share.HALF) == "0.5"


@pytest.mark.parametrize(
    "value", [-1, 1.0, "1", True, None, 2**63, pytest.param(10**5000, id="of thousands of digits")]
)
def test_other_numbers_are_refused_with_the_range_that_is_allowed(value: object) -> None:
    with pytest.raises(BadOption, match=f"^pri must be a whole number from 0 to {2**63 - 1}"):
        options.whole("pri", value)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, None),
        ("", ""),
        ("nil", "nil"),
        (1, "1"),
        ("1", "1"),
        (1.5, "1.5"),
        (7.0, "7"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.33333333333333"),
        (1e100, "1e+100"),
        (True, "true"),
        (False, "false"),
        ("größe", "größe"),
        (Host.SHOP, "shop.example"),  # not "Host.SHOP", as it shows itself
        (Customer.ANN, "7"),
    ],
)
def test_sub_queues_are_compared_as_text(value: object, name: str | None) -> None:
    assert options.sub_queue_name(options.sub_queue(value)) == name


@given(st.lists(st.none() | st.text("a\1\2", max_size=4) | st.text(st.characters(exclude_categories=["Cs"]))))
def test_no_two_sub_queues_are_stored_alike(names: list[str | None]) -> None:
    """Not even the unnamed one and the one with an empty name. Each is read back as it was given."""
    names = [name for name in names if name is None or "\0" not in name]
    stored = [options.sub_queue(name) for name in names]
    assert [options.sub_queue_name(text) for text in stored] == names
    assert len({*stored}) == len({*names})


def test_ordinary_names_are_stored_as_they_are_and_the_unnamed_as_nothing() -> None:
    assert [options.sub_queue(name) for name in (None, "a", "", "\1a")] == ["", "a", "\1", "\1\1a"]
    assert options.sub_queue_name(None) is None


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, b"x", [], "a\0b", "\ud800", pytest.param(10**5000, id="of thousands of digits")],
)
def test_what_is_no_text_names_no_sub_queue(value: object) -> None:
    with pytest.raises(BadOption, match="utube"):
        options.sub_queue(value)


def test_an_option_of_another_type_is_not_supported_and_says_what_is() -> None:
    with pytest.raises(NotSupported, match=r"put does not support 'ttl'; it supports: pri, utube") as caught:
        options.check_names(["pri", "ttl"], ["pri", "ttl", "utube"], ["utube", "pri"], "put")
    assert caught.value.option == "ttl"


def test_an_unknown_option_is_an_error_that_suggests_a_near_miss() -> None:
    with pytest.raises(BadOption, match=r"put has no option 'dealy'; did you mean 'delay'\?") as caught:
        options.check_names(["dealy"], ["delay"], ["delay", "ttl"], "put")
    assert not isinstance(caught.value, NotSupported)


def test_what_a_call_takes_for_every_type_is_suggested_too() -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        for near, call in (
            ("if_not_exists", lambda: queue.create_tube("more", "fifo", if_not_exist=True)),
            ("temporary", lambda: queue.create_tube("more", "fifo", temporay=True)),
            ("on_task_change", lambda: queue.create_tube("more", "fifo", on_task_chnage=print)),
            ("connection", lambda: jobs.put("x", conection=None)),  # type: ignore[call-arg]
            ("unit", lambda: jobs.release(1, unti=None)),  # type: ignore[call-arg]
            ("session_ttr", lambda: queue.configure(session_ttl=60)),
        ):
            with pytest.raises(BadOption, match=f"did you mean '{near}'"):
                call()


@pytest.mark.parametrize("given", [-1, "60", None, float("nan"), True])
def test_what_is_no_duration_is_refused_by_configure_too(given: Any) -> None:
    with tubes.connect("sqlite://", sweep=False) as queue, pytest.raises(BadOption) as caught:
        queue.configure(session_ttr=given)
    assert caught.value.option == "session_ttr"


def test_what_another_type_has_is_suggested_too() -> None:
    """Whoever misspells an option that this type lacks learns its name first, then that the type lacks it."""
    with tubes.connect("sqlite://", sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        for near, call in (
            ("delay", lambda: jobs.put("x", dealy=5)),  # type: ignore[call-arg]
            ("pri", lambda: jobs.put_many("x", prio=1)),  # type: ignore[call-arg]
            ("capacity", lambda: queue.create_tube("more", "utubettl", capcity=1)),
        ):
            with pytest.raises(BadOption, match=f"; did you mean '{near}'"):
                call()
        assert queue.tubes() == ["jobs"] and jobs.statistics()["tasks"]["total"] == 0


def test_a_time_of_nothing_is_a_time() -> None:
    assert stored_options({"ttl": 0, "ttr": 0, "pri": 0, "capacity": 0}) == {
        "ttl_ms": 0,
        "ttr_ms": 0,
        "pri": 0,
        "capacity": 0,
    }
    assert stored_options({"ttl": None, "ttr": None}) == {}


def test_known_options_pass() -> None:
    options.check_names(["delay"], ["delay"], ["delay"], "put")
    options.check_names([], [], [], "put")
