"""What operators, filters and methods of a template would make, asked of the budget before they make it.

Each check of a filter takes what the filter takes. Knows no template language beyond that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from worker.chat.budget import N_BITS, SMALL, TEXT, TooMuch, budget

WIDE = re.compile(r"\d{5}")
"""In a format: a width that no text needs."""
PLACEHOLDER = re.compile(r"%(?:\([^)]*\))?[^%a-zA-Z]*?(?:\d{5}|\*)")
"""One with such a width, or with one that is not told."""
N_DIGITS = 100
"""After a decimal point."""
N_ROWS = 10_000


def times(left: Any, right: Any) -> Any:
    limits = budget()
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > N_BITS:
            raise TooMuch("it makes a number that is too large")
    elif isinstance(right, int) and not isinstance(left, float):
        limits.allow(limits.weight(left) * right)
    elif isinstance(left, int) and not isinstance(right, float):
        limits.allow(limits.weight(right) * left)
    return limits.made(left * right)


def power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > N_BITS:
        raise TooMuch("it makes a number that is too large")
    return left**right


def modulo(left: Any, right: Any) -> Any:
    if isinstance(left, TEXT):
        check_format(left, right)
    return left % right


def check_format(form: Any, *values: Any, **named: Any) -> None:
    text = form if isinstance(form, str) else str(form)
    if PLACEHOLDER.search(text):
        raise TooMuch("it formats too widely")
    budget().allow(len(text) + text.count("%") * budget().weight([values, named]))


def method_arguments(name: str, text: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a method of a text may be called with. TooMuch before it makes too much."""
    if len(text) > SMALL:
        budget().allow(len(text))
    match name, args:
        case (("center" | "ljust" | "rjust" | "zfill"), (int() as width, *_)):
            budget().allow(width)
        case "replace", (old, new, *_):
            _check_replace(text, old, new)
        case "join", (values,):
            return (check_join(values, text),)
    return args


def _check_center(value: Any, width: int = 80) -> None:
    budget().allow(width)


def _check_indent(text: Any, width: int | str = 4, *_: Any, **__: Any) -> None:
    budget().allow(str(text).count("\n") * (len(width) if isinstance(width, str) else width))


def check_rows(value: Any, *counts: Any, **named: Any) -> None:
    if any(isinstance(count, int) and count > N_ROWS for count in (*counts, *named.values())):
        raise TooMuch("it makes too many rows")


def _check_round(value: Any, precision: int = 0, *_: Any, **__: Any) -> None:
    if abs(precision) > N_DIGITS:
        raise TooMuch("it rounds to too many digits")


def _check_sum(value: Any, attribute: Any = None, start: Any = 0) -> None:
    """A sum of lists copies its beginning again for each."""
    if not isinstance(start, int | float):
        raise TooMuch("it sums what is no number")


def _check_replace(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    text = str(text)
    budget().allow(len(text) + text.count(str(old)) * len(str(new)))


def check_join(values: Any, d: Any = "", attribute: Any = None) -> list[Any]:
    """What is to be joined: what comes one by one, all at once."""
    limits = budget()
    held = list(limits.each(values))
    limits.allow(limits.weight(held) + len(held) * len(str(d)))
    return held


def _check_json(
    value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> None:
    limits = budget()
    if indent is not None or separators is not None:
        width = indent if isinstance(indent, int) else limits.weight(indent)
        limits.allow(limits.weight(value) * (width + limits.weight(separators)))


CHECKS: dict[str, Callable[..., None]] = {
    "batch": check_rows,
    "center": _check_center,
    "format": check_format,
    "indent": _check_indent,
    "replace": _check_replace,
    "round": _check_round,
    "slice": check_rows,
    "sum": _check_sum,
    "tojson": _check_json,
}
"""What is asked before a filter makes more than it is given."""
