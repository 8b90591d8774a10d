"""The command line of a class of settings: what a field's flags are called, and a help that can be read.

Knows the fields and their groups; not what any setting means, and no variables or files.
"""

from __future__ import annotations

import argparse
import inspect
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Flag:
    """The flags of a field; a name without a dash makes it a positional argument.

    A switch that is on unless told otherwise may have a short flag that turns it `off`.
    """

    names: tuple[str, ...]
    off: tuple[str, ...] = ()

    def __init__(self, *names: str, off: Sequence[str] = ()) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "off", tuple(off))


@dataclass(frozen=True)
class Known:
    """Variables by which other programs know a field, the first that is set. They weigh less than all of ours."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def flag_of(field: FieldInfo) -> Flag | None:
    return next((item for item in field.metadata if isinstance(item, Flag)), None)


class Parser(argparse.ArgumentParser):
    """Tells of a mistake in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Switch(argparse.BooleanOptionalAction):
    """`--name` and `--no-name`, and a short flag for each if it has them."""

    def __init__(self, option_strings: Sequence[str], dest: str, off: Sequence[str] = (), **more: Any) -> None:
        super().__init__(option_strings, dest, **more)
        self._off = tuple(off)
        self.option_strings = [*self.option_strings, *off]

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option is not None:
            setattr(namespace, self.dest, option not in self._off and not option.startswith("--no-"))


def parser_of(cls: type[BaseModel], prog: str, description: str, epilog: str) -> Parser:
    parser = Parser(
        prog=prog,
        usage=" ".join((prog, "[options]", *(name.upper() for name in _positionals(cls)))),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add_flags(parser, cls)
    return parser


def add_flags(parser: argparse.ArgumentParser, cls: type[BaseModel]) -> None:
    """The flags of a class, and the one that names its file. Those that are not given set nothing."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings", default=argparse.SUPPRESS)
    for group, fields in _groups(cls):
        target = parser.add_argument_group(group) if group else parser
        for name, field, flag in fields:
            _add(target, name, field, flag)


def _groups(cls: type[BaseModel]) -> Iterator[tuple[str, list[tuple[str, FieldInfo, Flag]]]]:
    """Fields by who declared them first, under that class's `group`, in the order of the bases. One that is declared
    anew stays where it was."""
    left = {name: field for name, field in cls.model_fields.items() if flag_of(field)}
    found: list[tuple[str, list[tuple[str, FieldInfo, Flag]]]] = []
    for base in reversed(cls.__mro__):
        own = [name for name in inspect.get_annotations(base) if name in left]
        members = [(name, field, flag) for name in own if (flag := flag_of(field := left.pop(name)))]
        if members:
            found.append((getattr(base, "group", ""), members))
    positionals = [member for _, members in found for member in members if not _is_option(member[2])]
    yield "", positionals
    for group, members in reversed(found):
        if options := [member for member in members if _is_option(member[2])]:
            yield group, options


def _positionals(cls: type[BaseModel]) -> list[str]:
    return [name for name, field in cls.model_fields.items() if (flag := flag_of(field)) and not _is_option(flag)]


def _is_option(flag: Flag) -> bool:
    return flag.names[0].startswith("-")


def _add(parser: argparse._ActionsContainer, name: str, field: FieldInfo, flag: Flag) -> None:
    more: dict[str, Any] = {"help": _help(field), "default": argparse.SUPPRESS}
    choices = _choices(field.annotation)
    if field.annotation is bool:
        more |= {"action": _Switch, "off": flag.off}
    elif _is_list(field.annotation):
        more |= {"action": "append", "metavar": "KEY" if SecretStr in get_args(field.annotation) else "LIST"}
    elif choices:
        more["metavar"] = "{" + ",".join(choices) + "}"
    else:
        more["metavar"] = _metavar(field) if _is_option(flag) else name.upper()
    if _is_option(flag):
        more["dest"] = name
    parser.add_argument(*(flag.names if _is_option(flag) else (name,)), **more)


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    default = field.default
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if field.is_required() or default in (None, "", ()) or default is False:
        return text
    if isinstance(default, tuple):
        default = ",".join(default)
    return f"{text} (default: {'on' if default is True else default})"


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for arg in get_args(annotation) if (found := _choices(arg))), ())
    return ()


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _metavar(field: FieldInfo) -> str:
    kinds = set(_kinds(field.annotation))
    return "N" if kinds & {int, float} else "PATH" if Path in kinds else "TEXT"


def _kinds(annotation: Any) -> Iterator[Any]:
    """The plain types that a field may have: those of a union, without what is annotated."""
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    elif get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    else:
        yield annotation
