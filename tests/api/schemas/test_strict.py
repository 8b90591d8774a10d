"""Strict JSON in and out."""

from __future__ import annotations

import json

import pytest

from api.schemas.strict import MAX_DEPTH, MAX_VALUES, OwnFields, parse_object, read, to_json
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{bad",
        b"[1]",
        b"null",
        b'"x"',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": -1e400}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": "x\\ud800y"}',
        b'{"a\\udfff": 1}',
        b'{"a": ["\\ud83d", "\\ude00"]}',
        b'{"a": "\xff"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a": ' + b'{"b":' * 200 + b"1" + b"}" * 201,
        b'{"a": 1} {"b": 2}',
        b"{'a': 1}",
    ],
)
def test_what_is_not_strict_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_object(raw)


def test_what_was_forgotten_is_said_to_be_empty() -> None:
    with pytest.raises(InvalidRequest, match=r"^The body is empty, and must be JSON$"):
        parse_object(b"")


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


def test_a_surrogate_in_a_forgotten_key_does_no_harm() -> None:
    assert parse_object(b'{"a": "\\ud800", "a": "ok"}') == {"a": "ok"}


def test_ordinary_nesting_is_let_through() -> None:
    raw = b'{"a": ' + b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2) + b"}"
    assert parse_object(raw)
    assert parse_object(b'{"a": [' + b",".join([b"[1]"] * 1000) + b"]}")


def test_text_that_looks_like_a_surrogate_is_text() -> None:
    assert parse_object(b'{"a": "\\\\ud800"}') == {"a": "\\ud800"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_never_sent(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": value})


def test_json_is_compact_utf8() -> None:
    assert to_json({"a": ["é", "\u2027"]}) == '{"a":["é","\u2027"]}'.encode()


def test_json_is_one_line_for_every_reader_of_lines() -> None:
    value = {letter: f"a{letter}b" for letter in map(chr, [*range(0x300), *range(0x2000, 0x2070), 0x10000])}
    written = to_json(value)
    assert len(written.decode().splitlines()) == 1, "httpx, and so openai and ollama, read lines so"
    assert json.loads(written) == value


class Own(OwnFields):
    n: int = 1
    inner: dict[str, str] = {}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": True}, "n"),
        ({"n": "3"}, "n"),
        ({"n": 2.0}, "n"),
        ({"m": 1}, "m"),
        ({"inner": {"k": 5}}, "inner.k"),
    ],
)
def test_the_first_bad_field_is_named(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Field '{name}': ") as caught:
        read(Own, fields)
    assert caught.value.param == name


class Outer(OwnFields):
    own: Own | None = None
    pairs: dict[str, str] = {}
    all: list[Own] = []


@pytest.mark.parametrize("fields", [{"own": "x"}, {"own": [1]}, {"pairs": "x"}, {"all": ["x"]}])
def test_no_error_has_a_name_of_our_code(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field '[a-z]+(\[0\])?': Input should be an object$"):
        read(Outer, fields)


def test_null_is_absent() -> None:
    assert read(Own, {"n": None}).n == 1


@pytest.mark.parametrize("item", ["1", '"a"', "[]", '{"a":1}', '"a,b"', r'"\"\\"'])
def test_more_values_than_can_be_taken_apart_in_time_are_refused(item: str) -> None:
    raw = f'{{"a":[{",".join([item] * MAX_VALUES)}],"b":1}}'.encode()
    with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} values"):
        parse_object(raw)


def test_commas_in_a_text_are_no_values() -> None:
    text = r",\",\\" * (MAX_VALUES // 2 + 1)
    assert parse_object(f'{{"a":["{text}",2]}}'.encode())["a"][1] == 2
