"""What a task carries: anything that JSON can carry, or bytes as they are. Never pickle.

msgspec does the work; it is the fast codec that carries whole numbers of any size. It would also turn dates,
sets and nested bytes silently into text, so what comes back is compared with what went in, and whatever
differs is looked at closely: a tuple becomes a list, everything else that JSON has no form for is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tubes.stacks import whole_stacks

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_exactly = msgspec.json.Decoder(float_hook=float).decode  # takes three times as long
if _decode("4.438971") != 4.438971:  # C calculates with more digits than a float keeps, as on 32-bit x86
    _decode = _decode_exactly

_FOREIGN = (
    msgspec.MsgspecError, TypeError, ValueError, AttributeError, LookupError, RuntimeError, BufferError,
)  # fmt: skip
"""What the fast codec and a foreign ``__eq__`` raise; a closer look says what is wrong.

The error of a timeout is not among them: it must end the put.
"""


def encode(data: Any, where: str = "data") -> tuple[str | bytes, Any]:
    """Return what is stored (JSON text or bytes) and what it will come back as.

    TypeError for what cannot be carried, with its place: ``where`` is that of ``data`` itself.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        try:
            # of a subclass, what it holds, and not what its methods say
            carried = data if type(data) is bytes else bytes(memoryview(data))
        except ValueError as error:  # a memoryview that was released
            raise TypeError(f"{where} cannot be carried: {error}") from error
        return carried, carried
    try:
        encoded = _encode(data)
        back = _decode(encoded)
        if back == data:
            return encoded.decode(), back
    except _FOREIGN:
        pass
    try:
        _check(data, where)
        text = json.dumps(data, allow_nan=False)
        return text, json.loads(text)
    except RecursionError:
        raise TypeError(
            f"{where} cannot be carried as JSON: it is nested too deeply, or contains itself"
        ) from None
    except ValueError as error:  # of a number with thousands of digits
        raise TypeError(f"{where} cannot be carried as JSON: {error}") from error


def encode_many(datas: list[Any]) -> list[tuple[str | bytes, Any]]:
    """Encode each of these, with one check for all if nothing is wrong with any."""
    try:
        encoded = [*map(_encode, datas)]
        back = _decode(b"[" + b",".join(encoded) + b"]")
        if back == datas:
            return [*zip(map(bytes.decode, encoded), back, strict=True)]
    except _FOREIGN:  # encode, below, says what is wrong
        pass
    return [encode(data, f"datas[{index}]") for index, data in enumerate(datas)]


def decode(payload: str | bytes) -> Any:
    """Return what a stored payload means."""
    if isinstance(payload, bytes):
        return payload
    try:
        return _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return decode_json(payload)  # which looks at it closely


def decode_many(payloads: Sequence[str]) -> list[Any]:
    """Decode each of these texts, in one go if possible."""
    try:
        datas: list[Any] = _decode(f"[{','.join(payloads)}]")
        if len(datas) == len(payloads):
            return datas
    except (msgspec.DecodeError, RecursionError):
        pass
    return [decode(payload) for payload in payloads]


def decode_json(text: str | bytes) -> Any:
    """Return what a text means; the text itself, as bytes, if it is not JSON that Python can read.

    Another client may have written it, or it was damaged. The consumer that takes the task can see that, and
    bury it; an error would bring the task back again and again, and hold up those behind it.
    """
    try:
        return parse(text)
    except ValueError:
        return text if isinstance(text, bytes) else text.encode(errors="surrogatepass")


def why_unreadable(text: str | bytes) -> str:
    """Return why a text is not JSON that Python can read; an empty text if it is."""
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return ""


def parse(text: str | bytes) -> Any:
    """Return what a text means; ValueError if it is not JSON that Python can read."""
    try:
        return _decoded(text)
    except RecursionError:  # the caller's stack leaves too little room: a new thread has a whole stack
        with ThreadPoolExecutor(1) as executor, whole_stacks():
            parsed = executor.submit(_decoded, text)
        if isinstance(parsed.exception(), RecursionError):
            raise ValueError("it is nested too deeply") from None
        return parsed.result()


def _decoded(payload: str | bytes) -> Any:
    try:
        return _decode(payload)
    except msgspec.DecodeError:  # escaped lone surrogates, which only the standard library accepts
        return json.loads(payload)


def _check(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where} cannot be carried as JSON: {value!r} is not a finite number")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} cannot be carried as JSON: key {key!r} is not text")
            _check(item, f"{where}[{key!r}]")
    else:
        raise TypeError(
            f"{where} cannot be carried as JSON: {type(value).__name__} is not one of None, bool, int, float, "
            "str, list, tuple, dict (bytes are carried when they are the whole payload)"
        )
