"""A payload comes back as it was, or is refused: nothing changes silently on the way."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import signal
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubes import payload
from tubes.payload import decode, decode_json, decode_many, encode, encode_many, why_unreadable

NUMBERS = [0, -1, 2**53 + 1, 2**64, -(2**80), 10**400, 0.1, 1e308, 5e-324, 4.438971]
EDGES = [*NUMBERS, "", "a\0b", "\ud800x", "😀", [], {}]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),  # lone surrogates and NUL among them
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type: 1 is not 1.0, and True is neither."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@given(json_values)
def test_whatever_json_can_carry_comes_back_the_same(data: Any) -> None:
    stored, known = encode(data)
    assert isinstance(stored, str)
    stored.encode()  # a store can hold it
    assert "\0" not in stored
    assert same(decode(stored), data)
    assert same(known, data)


@given(st.binary())
def test_bytes_are_stored_as_they_are(data: bytes) -> None:
    for given_ in (data, bytearray(data), memoryview(data)):
        stored, known = encode(given_)
        assert type(stored) is bytes and stored == data == known
        assert decode(stored) == data


def test_bytes_of_a_class_of_its_own_are_carried_as_the_bytes_that_they_are() -> None:
    """A store given such an object would ask it again for its length and its bytes."""

    class Odd(bytes):
        def __bytes__(self) -> bytes:
            return self

        def __len__(self) -> int:
            return 3

    carried, back = encode(Odd(b"payload"))
    assert type(carried) is bytes
    assert (carried, back) == (b"payload", b"payload")


@pytest.mark.parametrize("data", EDGES)
def test_the_edges_come_back(data: Any) -> None:
    assert same(decode(encode(data)[0]), data)


@pytest.mark.parametrize("text", [*map(repr, NUMBERS), "-0.0", "1E2", "1e400", "1.", "nan", "[1.50]", "[1.5"])
def test_where_the_fast_codec_gets_numbers_wrong_python_reads_the_same(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """So it is on 32-bit x86, where C calculates with more digits than a float keeps."""
    usual = decode(text)
    monkeypatch.setattr(payload, "_decode", payload._decode_exactly)
    assert repr(decode(text)) == repr(usual)


def test_a_view_that_was_released_or_has_gaps_is_carried_or_refused() -> None:
    """Alone or in a batch. For a released one, Python itself raises ValueError, which is no error of ours."""
    view = memoryview(b"abcdef")
    assert encode_many([view[::2], "x"]) == [(b"ace", b"ace"), ('"x"', "x")]
    view.release()
    for put in (lambda: encode(view), lambda: encode_many(["x", view])):
        with pytest.raises(TypeError, match="released"):
            put()


def test_minus_zero_keeps_its_sign() -> None:
    assert math.copysign(1, decode(encode(-0.0)[0])) == -1


def test_a_tuple_becomes_a_list_and_the_caller_is_told_what_it_will_be() -> None:
    stored, known = encode({"at": (1, (2, 3))})
    assert known == {"at": [1, [2, 3]]} == decode(stored)


def test_what_comes_back_is_a_copy() -> None:
    data = {"list": [1]}
    _, known = encode(data)
    data["list"].append(2)
    assert known == {"list": [1]}


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "data",
    [
        {1, 2},
        datetime.datetime(2026, 1, 1),
        datetime.date(2026, 1, 1),
        decimal.Decimal("1.5"),
        uuid.UUID(int=0),
        Colour.RED,
        Point(1),
        object(),
        {"deep": [b"bytes"]},
        {1: "key"},
        {None: "key"},
        math.nan,
        [math.inf],
        {"x": -math.inf},
        1j,
        LOOP,
        range(3),
        10**5000,
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_json_has_no_form_for_is_a_type_error(data: Any) -> None:
    with pytest.raises(TypeError, match="cannot be carried as JSON"):
        encode(data)


def test_the_error_says_where() -> None:
    said = r"^data\['jobs'\]\[1\] cannot be carried as JSON: set is not one of None"
    with pytest.raises(TypeError, match=said):
        encode({"jobs": [1, {2}]})


@pytest.mark.parametrize("bad", [{"x": {2}}, math.nan, LOOP, 10**5000], ids=["set", "nan", "loop", "digits"])
def test_of_several_the_error_says_which(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^datas\[2\](\['x'\])? cannot be carried"):
        encode_many(["fine", {"fine": 1}, bad, bad])


def test_data_that_contains_itself_or_is_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="nested too deeply"):
        encode(deep)


def test_a_foreign_equality_that_raises_does_no_harm() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="Odd is not"):
        encode([Odd()])


def test_what_a_signal_s_handler_raises_meanwhile_is_raised() -> None:
    """It may be the timeout of a put that takes too long."""

    class Long(dict[str, int]):
        def __eq__(self, other: object) -> bool:
            signal.raise_signal(signal.SIGALRM)
            return super().__eq__(other)

        __hash__ = None

    def handle(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for call in (lambda: encode(Long(a=1)), lambda: encode_many([Long(a=1)])):
            with pytest.raises(TimeoutError):
                call()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "text",
    ['{"torn', "", "[" * 100_000 + "]" * 100_000, "nan", '"\xff"'],
    ids=["torn", "empty", "deep", "nan", "latin-1"],
)
def test_what_is_no_json_comes_back_as_it_is(text: str) -> None:
    """As bytes, that is; see ``decode_json``."""
    raw = text.encode("latin-1")
    is_text = text.isascii()
    if is_text:
        assert decode(text) == raw
        assert decode_many(["1", text]) == [1, raw]
    assert decode_json(raw) == raw
    assert why_unreadable(raw) and not why_unreadable(b'{"whole": 1}')


def test_a_text_that_would_be_two_of_a_batch_is_still_one() -> None:
    assert decode_many(["1,2", "3"]) == [b"1,2", 3]


def test_a_payload_is_decoded_however_deep_in_calls_its_reader_is() -> None:
    def read(calls: int) -> Any:
        return read(calls - 1) if calls else [decode(text), *decode_many([text, text])]

    text = "[" * 800 + "]" * 800
    for nested in read(200):
        levels = 0
        while nested:
            (nested,) = nested
            levels += 1
        assert levels == 799
