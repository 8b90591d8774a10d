"""Jinja's sandbox with a budget: loops, calls, filters and operators count, and ask before they make something large.

Jinja's own keeps a template from the process's objects, but not from its time and memory. Here the parsed template is
rewritten, so that each loop, sum and literal goes by one of the functions below; without loops and calls a template's
work is bounded by its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import EscapeFormatter, Markup

from worker.chat.budget import FIXED, SMALL, TEXT, Budget, TooMuch, budget, spending
from worker.chat.growth import CHECKS, WIDE, check_join, check_rows, method_arguments, modulo, power, times

ONLY_TEXT, N_AT_ONCE = {str}, 32
"""So many texts are put together before the sum is looked at: each is bounded."""
SIZED = (list, tuple, dict, range)
CALL = 4
"""Steps of a call."""

AT_ONCE = frozenset({"count", "d", "default", "first", "items", "length"})
"""Filters that take as long for a long list as for a short one: many templates ask for the length in each turn."""
FOR_PAGES = ("urlize", "striptags", "xmlattr", "wordwrap", "pprint")
"""Filters for the web; some of them take a time that grows with the square of a text."""
RARE_METHODS = frozenset({"expandtabs", "translate", "maketrans", "to_bytes", "from_bytes"})
"""Of texts and numbers. llama.cpp's Jinja has none of them, so that no template needs them."""

COUNTED, ADDED, JOINED, WEIGHED, COPIED = " counted", " added", " joined", " weighed", " copied"
"""Filters that no template can name."""


def _concatenated(pieces: Iterable[str]) -> str:
    """What a template, a macro or a block has written, each piece of which was paid for."""
    written = list(pieces)
    budget().allow(sum(map(len, written)))
    return "".join(written)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders within the budget that `spending` sets; compiling has one of its own."""

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(_concatenated)

    def __init__(self, *, filters: dict[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(finalize=_shown, **options)
        self.globals["namespace"] = _Names
        del self.globals["lipsum"]
        named = {**self.filters, **filters}
        self.filters = {name: _limited(name, call) for name, call in named.items() if name not in FOR_PAGES}
        self.filters.update({COUNTED: _counted, ADDED: _added, JOINED: _joined, WEIGHED: _weighed, COPIED: _copied})
        self.binop_table.update({"*": times, "**": power, "%": modulo})

    def from_string(self, source: Any, *args: Any, **options: Any) -> Any:
        """Jinja computes what is constant already here."""
        with spending(Budget()):
            return super().from_string(source, *args, **options)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Rewriting().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in RARE_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        limits = budget()
        limits.spend(CALL + len(args))
        if isinstance(__obj, LoopContext):
            args = tuple(map(_counted, args))
        elif isinstance(__obj, BuiltinMethodType) and isinstance(text := __obj.__self__, TEXT):
            args = method_arguments(__obj.__name__, text, args)
        return limits.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        takes_map = value.__name__ == "format_map"
        formatter = _EscapingFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)

        def formatted(*args: Any, **kwargs: Any) -> str:
            named = args[0] if takes_map else kwargs
            budget().allow(len(text) + text.count("{") * budget().weight([args, kwargs]))
            return type(text)(formatter.vformat(text, () if takes_map else args, named))

        return formatted


class _Rewriting(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(COUNTED, node.iter)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        """A chain of sums at once: most templates are made of them."""
        terms: list[nodes.Expr] = []
        first: nodes.Expr = node
        while isinstance(first, nodes.Add):
            terms.insert(0, self.visit(first.right))
            first = first.left
        terms.insert(0, self.visit(first))
        return _through(ADDED, *terms)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(JOINED, *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_constant(node.items) else _through(WEIGHED, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node.items) else _through(WEIGHED, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through(WEIGHED, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through(COPIED, node) if isinstance(node.arg, nodes.Slice) else node


def _through(name: str, first: nodes.Node, *others: nodes.Node) -> nodes.Filter:
    return nodes.Filter(first, name, list(others), [], None, None, lineno=first.lineno)


def _is_constant(items: Iterable[nodes.Node]) -> bool:
    return all(isinstance(item, nodes.Const) for item in items)


class _Names(Namespace):
    """May hold itself, and what holds it: it does not show what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if WIDE.search(format_spec):
            raise TooMuch("it formats too widely")
        return super().format_field(value, format_spec)


class _EscapingFormatter(_Formatter, EscapeFormatter):
    pass


def _counted(values: Any) -> Any:
    """What a loop goes through: of what has a length this has it, too."""
    if not values and type(values) is list:  # most often: a message's calls, of which there are none
        return values
    parts = budget().each(values)
    return parts if parts is values or not hasattr(values, "__len__") else _Counted(values, parts)


class _Counted:
    __slots__ = ("_parts", "_values")

    def __init__(self, values: Sized, parts: Iterable[Any]) -> None:
        self._values, self._parts = values, parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._values)


def _added(*terms: Any) -> Any:
    limits = budget()
    if len(terms) <= N_AT_ONCE and set(map(type, terms)) == ONLY_TEXT:
        return limits.made("".join(terms))
    total = terms[0]
    for term in terms[1:]:
        both = total + term
        total = limits.together(total, term, both) if isinstance(total, FIXED) else limits.made(both)
    return total


def _joined(*values: Any) -> str:
    return _concatenated(value if type(value) is str else _shown(value) for value in values)


def _weighed(value: Any) -> Any:
    return budget().made(value)


def _copied(part: Any) -> Any:
    if hasattr(part, "__len__"):
        budget().allow(len(part))
    return part


def _shown(value: Any) -> str:
    return value if type(value) is str else budget().made(str(value))


def _limited(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    check = CHECKS.get(name)
    looks_at_all = name not in AT_ONCE
    n_before = 1 if hasattr(call, "jinja_pass_arg") else 0

    @wraps(call)
    def limited(*args: Any, **kwargs: Any) -> Any:
        limits = budget()
        value = args[n_before]
        if not isinstance(value, TEXT):
            limits.spend(1 + (len(value) if looks_at_all and isinstance(value, SIZED) else 0))
        elif looks_at_all and len(value) > SMALL:
            limits.allow(len(value))
        if name == "join":
            args = (*args[:n_before], check_join(*args[n_before:], **kwargs), *args[n_before + 1 :])
        elif check is not None:
            check(*args[n_before:], **kwargs)
        value = call(*args, **kwargs)
        return map(limits.made, value) if check is check_rows else limits.made(value)

    return limited
