"""Where a setting's value comes from: a flag, a `SLOTSTREAM_*` variable, a TOML file, or a variable that other programs
know it by, in that order of weight.

The base of every role's settings. Knows no setting by name; who is at fault is always told by the place where the
value stands, also in a child that a supervisor started.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

from shared.settings.flags import Known, flag_of, parser_of

PREFIX = "SLOTSTREAM_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
CONFIG_FILE = "slotstream.toml"
ORIGINS_VARIABLE = PREFIX + "ORIGINS"
"""Of the variables that a supervisor sets: the places that it has the values from, as JSON."""
EPILOG = "Every long flag is also a variable and a key of slotstream.toml:\n{flag} is {variable} and {key}."
EXAMPLES = ("log_level", "url")
"""The fields that the help takes for an example: the first of them that a role has."""

ROLES: dict[str, type[Settings]] = {}
"""Every class that names a role, by that name."""


class ConfigError(Exception):
    """A setting is wrong. The message is one sentence that names it."""


class _File(NamedTuple):
    """What a file says for one role."""

    values: dict[str, Any]
    places: dict[str, str]
    """By field: what a person would look for."""


class Settings(BaseSettings):
    """Base of all roles. Build with `from_command_line`, or directly with keyword arguments in tests."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        protected_namespaces=(),
        defer_build=True,  # until it is used: every process declares all roles and is one
    )
    role: ClassVar[str] = ""
    group: ClassVar[str] = ""
    """Heading in the help for the fields that a class declares."""
    epilog: ClassVar[str] = ""
    """What else its help says."""
    _content: ClassVar[dict[str, Any]] = {}
    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        if "role" in vars(cls):
            ROLES[cls.role] = cls

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        known = {name: os.environ[variable] for name, variable in _known_elsewhere(settings_cls).items()}
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, cls._content),
            InitSettingsSource(settings_cls, known),
        )

    @classmethod
    def from_command_line(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Settings from flags, variables and the file. Prints help, or one sentence on stderr, and exits."""
        parser = parser_of(cls, prog, description, "\n\n".join(filter(None, (_epilog(cls), cls.epilog))))
        given = vars(parser.parse_args(argv))
        try:
            settings = cls.load(given.pop("config", None), **given)
        except ConfigError as error:
            parser.exit(2, f"{prog}: {error}\n")
        return settings

    @classmethod
    def load(cls, config: str | None = None, /, **given: Any) -> Self:
        """Settings from `given`, variables and the file. Raises ConfigError."""
        _check_variables()
        file = _read_file(cls, config)
        places = _known_elsewhere(cls) | file.places | _variables(cls)
        places = {name: place for name, place in places.items() if name not in given}
        loaded: type[Self] = type(cls.__name__, (cls,), {"__module__": cls.__module__, "_content": file.values})
        try:
            settings = loaded(**given)
        except ValidationError as error:
            raise ConfigError(_blame(cls, places, _sentence(cls, error))) from None
        settings._places.update(places)
        try:
            settings.check()
        except ConfigError as error:
            raise ConfigError(settings.blame(str(error))) from None
        return settings

    @field_validator("*", mode="before")
    @classmethod
    def _check_for_nul(cls, value: Any) -> Any:
        """Only a file can have one: no path may, nor may a variable of a child."""
        texts = value if isinstance(value, list | tuple) else (value,)
        if any("\0" in str(text) for text in texts if isinstance(text, str | Path)):
            raise ValueError("must not have a NUL in it")
        return value

    def check(self) -> None:
        """Raise ConfigError for what does not go together."""

    def blame(self, sentence: str) -> str:
        """A sentence about flags, as one about the places where their values stand."""
        return _blame(type(self), self._places, sentence)

    def to_environment(self) -> dict[str, str]:
        """The fields that were set, as variables: how a supervisor hands settings, secrets too, to a child."""
        variables = {variable_of(name): _as_variable(getattr(self, name)) for name in self.model_fields_set}
        shown = {name: self._places.get(name) or _flag_name(type(self), name) for name in self.model_fields_set}
        return variables | {ORIGINS_VARIABLE: json.dumps(shown)}


def _epilog(cls: type[Settings]) -> str:
    key = next((name for name in EXAMPLES if name in cls.model_fields), None)
    return EPILOG.format(flag=_flag_name(cls, key), variable=variable_of(key), key=key) if key else ""


def variable_of(name: str) -> str:
    """The environment's name of a field."""
    return PREFIX + name.upper()


def _read_file(cls: type[Settings], config: str | None) -> _File:
    named = config or os.environ.get(CONFIG_VARIABLE)
    path = Path(named or CONFIG_FILE)
    if not named and not path.is_file():
        return _File({}, {})
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    _check_keys(path, content)
    values: dict[str, Any] = {}
    places: dict[str, str] = {}

    def take(keys: Mapping[str, Any], known: set[str], where: str) -> None:
        for key in keys.keys() & known:
            values[key] = keys[key]
            places[key] = f"{path}: {where}{key}"

    take({key: value for key, value in content.items() if key not in ROLES}, set(cls.model_fields), "")
    parts = _parts(cls)
    for part in parts:
        take(content.get(part.role, {}), _own(part, parts), f"[{part.role}] ")
    take(content.get(cls.role, {}), set(cls.model_fields), f"[{cls.role}] ")
    return _File(values, places)


def _check_keys(path: Path, content: Mapping[str, Any]) -> None:
    known = {name for role in ROLES.values() for name in role.model_fields}
    for table, keys in ((name, content[name]) for name in ROLES if name in content):
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: {table} must be a table, [{table}]")
        if unknown := set(keys) - set(ROLES[table].model_fields):
            raise ConfigError(f"{path}: [{table}] has no setting {sorted(unknown)[0]!r}")
    if unknown := content.keys() - ROLES.keys() - known:
        raise ConfigError(f"{path}: no setting is named {sorted(unknown)[0]!r}")


def _parts(cls: type[Settings]) -> list[type[Settings]]:
    """The roles that a role is made of: it starts them."""
    return [base for base in cls.__mro__[1:] if issubclass(base, Settings) and base.role and "role" in vars(base)]


def _own(part: type[Settings], parts: Sequence[type[Settings]]) -> set[str]:
    """What one of several roles has alone: what all have may differ from role to role."""
    common = set[str].intersection(*(set(each.model_fields) for each in parts))
    return part.model_fields.keys() - common


def _check_variables() -> None:
    """A misspelt variable would be a setting that silently is not made. Raises ConfigError."""
    known = {variable_of(name) for role in ROLES.values() for name in role.model_fields}
    known |= {CONFIG_VARIABLE, ORIGINS_VARIABLE}
    if unknown := sorted({name for name in os.environ if name.startswith(PREFIX)} - known):
        raise ConfigError(f"no setting is named {unknown[0]}")


def _variables(cls: type[Settings]) -> dict[str, str]:
    """By field: the variable that sets it, or where the supervisor has it from that set the variable."""
    told: dict[str, str] = json.loads(os.environ.get(ORIGINS_VARIABLE) or "{}")
    names = [name for name in cls.model_fields if os.environ.get(variable_of(name))]
    return {name: told.get(name, variable_of(name)) for name in names}


def _known_elsewhere(cls: type[BaseSettings]) -> dict[str, str]:
    """By field: the variable of other programs that sets it."""
    marks = [(name, mark) for name, field in cls.model_fields.items() for mark in field.metadata]
    named = [(name, variable) for name, mark in marks if isinstance(mark, Known) for variable in reversed(mark.names)]
    return {name: variable for name, variable in named if os.environ.get(variable)}


def _flag_name(cls: type[Settings], name: str) -> str:
    field = cls.model_fields.get(name)
    flag = flag_of(field) if field else None
    return flag.names[-1] if flag else name


def _sentence(cls: type[Settings], error: ValidationError) -> str:
    """The first fault in one sentence, with the flag's name."""
    first = error.errors(include_input=False, include_url=False)[0]
    shown = _flag_name(cls, str(first["loc"][0])) if first["loc"] else "settings"
    if first["type"] == "missing":
        return f"{shown} is needed"
    message = first["msg"].removeprefix("Value error, ")
    return f"{shown}: {message[0].lower()}{message[1:]}"


def _blame(cls: type[Settings], places: Mapping[str, str], sentence: str) -> str:
    """The sentence with each flag replaced by the place where its value stands, if that is another."""
    fields = {_flag_name(cls, name): name for name in places}
    return re.sub(
        r"--[a-z][a-z0-9-]*", lambda found: places[fields[found[0]]] if found[0] in fields else found[0], sentence
    )


def _as_variable(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple) and any(isinstance(item, SecretStr) for item in value):
        return ",".join(_as_variable(item) for item in value)
    if isinstance(value, tuple):
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow([_as_variable(item) for item in value])
        return row.getvalue()
    if isinstance(value, bool):
        return "1" if value else "0"
    return "" if value is None else str(value)
