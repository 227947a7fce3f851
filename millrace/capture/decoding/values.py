"""Column values as JSON: from the text that Postgres writes to the text that jsonb takes, without losing a digit."""

import hmac
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, TypeAlias, cast

from millrace.capture.decoding.encodings import NO_TEXT

Encoder: TypeAlias = Callable[[bytes], str]

_JSON_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(_JSON_NUMBER)
# possessive: after a line that is not a number, nothing before it is tried again
_NUMBERS = re.compile(_JSON_NUMBER + rb"(?:\n" + _JSON_NUMBER + rb")*+")
# the limits of jsonb's numbers
_DIGITS_BEFORE_POINT = 131072
_DIGITS_AFTER_POINT = 16383

# the function that json.dumps(text, ensure_ascii=False) ends up calling
_quote = json.encoder.encode_basestring


class Undecodable(ValueError):
    """The bytes have no JSON form that jsonb takes; the text says why."""


def quoted(text: str) -> str:
    """Write a text as a JSON string that jsonb takes.

    Raises:
        Undecodable: The text contains NUL, which no Postgres text does.
    """
    if "\0" in text:
        raise Undecodable("contains a NUL character")
    return _quote(text)


def embedded(text: str) -> str:
    """Return a JSON document unchanged, if jsonb takes it.

    Raises:
        Undecodable: The text is not JSON, or JSON that jsonb refuses: with NUL, half of a surrogate pair, or a number
            beyond numeric.
    """
    try:
        document = _DOCUMENT.decode(text)
        if "\\u" in text:
            rewritten = json.dumps(document, ensure_ascii=False)
            # without the escaped backslashes, each remaining backslash begins an escape
            if "\\u0000" in rewritten.replace("\\\\", ""):
                raise Undecodable("is JSON with a NUL character, which jsonb does not hold")
            rewritten.encode()
    except RecursionError as deep:
        raise Undecodable("is JSON that is nested too deeply") from deep
    except Undecodable:
        raise
    except UnicodeEncodeError as bad:
        raise Undecodable("is JSON with half of a surrogate pair, which jsonb does not hold") from bad
    except (ValueError, ArithmeticError) as bad:
        raise Undecodable(f"is not JSON: {bad}") from bad
    return text


def encoder_of(type_oid: int) -> Encoder:
    """Return the function that encodes the values of a type; it raises `Undecodable`."""
    return _ENCODERS.get(type_oid, _string)


def encoded_column(encode: Encoder, values: Sequence[bytes | None]) -> list[str]:
    """Return a column's values as its encoder gives them, and null for a null: many at a time.

    Raises:
        Undecodable: One of them has no JSON form; call `encode` for each to find it.
    """
    if None in values:
        encoded = iter(encoded_column(encode, [value for value in values if value is not None]))
        return ["null" if value is None else next(encoded) for value in values]
    present = cast(Sequence[bytes], values)
    encode_many = _FOR_MANY.get(encode)
    found = encode_many(present) if encode_many else None
    return [encode(value) for value in present] if found is None else found


def masked(_: bytes) -> str:
    """Write the placeholder of a masked value."""
    return '"***"'


def hashing(key: bytes) -> Encoder:
    """Return the function that writes the HMAC-SHA-256 (RFC 2104) of a value's text under a key."""
    empty = hmac.new(key, digestmod="sha256")

    def encode(value: bytes) -> str:
        digest = empty.copy()
        digest.update(value)
        return f'"{digest.hexdigest()}"'

    return encode


def _string(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as bad:
        if value.startswith(NO_TEXT):
            raise Undecodable(f"is no text of its database's encoding: {value[len(NO_TEXT) :][:100]!r}") from bad
        raise Undecodable(f"is not UTF-8: {bad}") from bad
    if "\0" in text:
        raise Undecodable("contains a NUL character")
    return _quote(text)


def _strings(values: Sequence[bytes]) -> list[str] | None:
    """Return the JSON of texts, as `_string` gives it; None if one of them needs `_string` itself."""
    try:
        text = b"\0".join(values).decode()
    except UnicodeDecodeError:
        return None
    # No text has a NUL, so an escaped one is a border. If a value spells the escape out, there are too many parts.
    parts = _quote(text)[1:-1].split("\\u0000")
    return [f'"{part}"' for part in parts] if len(parts) == len(values) else None


def _number(value: bytes) -> str:
    if _NUMBER.fullmatch(value) is None:
        if value in {b"NaN", b"Infinity", b"-Infinity"}:
            return f'"{value.decode()}"'
        raise Undecodable(f"is not a number: {value[:100]!r}")
    return value.decode()


def _numbers(values: Sequence[bytes]) -> list[str] | None:
    """Return the JSON of numbers, as `_number` gives it; None if one of them needs `_number` itself."""
    lines = b"\n".join(values)
    if _NUMBERS.fullmatch(lines) is None:
        return None
    parts = lines.decode().split("\n")
    return parts if len(parts) == len(values) else None


def _truth(value: bytes) -> str:
    if value == b"t":
        return "true"
    if value == b"f":
        return "false"
    raise Undecodable(f"is neither true nor false: {value[:100]!r}")


def _document(value: bytes) -> str:
    try:
        return embedded(value.decode())
    except UnicodeDecodeError as bad:
        raise Undecodable(f"is not UTF-8: {bad}") from bad


def _check_number(text: str) -> None:
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() >= _DIGITS_BEFORE_POINT or -exponent > _DIGITS_AFTER_POINT:
        raise Undecodable("is JSON with a number that numeric does not hold")


def _check_integer(text: str) -> None:
    if len(text.lstrip("-")) > _DIGITS_BEFORE_POINT:
        raise Undecodable("is JSON with a number that numeric does not hold")


def _refuse_constant(name: str) -> None:
    raise Undecodable(f"is not JSON: {name} is no number")


_DOCUMENT: Final = json.JSONDecoder(
    parse_float=_check_number, parse_int=_check_integer, parse_constant=_refuse_constant
)
_ENCODERS: Final[dict[int, Encoder]] = {
    16: _truth,
    **dict.fromkeys((20, 21, 23, 26, 700, 701, 1700), _number),
    **dict.fromkeys((114, 3802), _document),
}
# encoders with a faster way for many values at once
_FOR_MANY: Final[dict[Encoder, Callable[[Sequence[bytes]], list[str] | None]]] = {_string: _strings, _number: _numbers}
