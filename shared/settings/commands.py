"""Settings of commands: those that start roles, and those of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from shared.settings.flags import Flag
from shared.settings.service import ApiSettings, TasksSettings
from shared.settings.sources import Settings
from shared.settings.worker import WorkerSettings


class ServeSettings(ApiSettings, WorkerSettings, TasksSettings):  # type: ignore[misc]  # pydantic's plugin: its own additions clash
    """All roles on one machine."""

    role: ClassVar[str] = "serve"
    group: ClassVar[str] = "processes"
    epilog: ClassVar[str] = "Exit codes: 0 it was told to leave, 2 a setting is wrong, 3 the model cannot be loaded."

    redis_url: Annotated[SecretStr | None, Flag("--redis-url")] = Field(  # type: ignore[assignment]
        None, description="URL of a Redis or Valkey to use instead of the embedded one"
    )
    workers: Annotated[int, Flag("--workers")] = Field(1, ge=0, le=64, description="worker processes")
    state_dir: Annotated[Path | None, Flag("--state-dir")] = Field(
        None, description="folder of the embedded server's data; default: slotstream in the user's state folder"
    )


class RunSettings(WorkerSettings, TasksSettings):  # type: ignore[misc]  # the same
    """A bulk file from start to finish."""

    role: ClassVar[str] = "run"
    group: ClassVar[str] = "run"
    epilog: ClassVar[str] = "Exit codes: 0 all lines succeeded, 1 some failed, 2 it could not run, 130 after Ctrl-C."

    input: Annotated[Path, Flag("input")] = Field(
        description="file of OpenAI batch lines: custom_id, method, url, body"
    )
    output: Annotated[Path, Flag("-o", "--output")] = Field(description="results file to write")
    url: Annotated[str | None, Flag("--url")] = Field(
        None,
        description="a running slotstream, for example http://127.0.0.1:8080, or a service with OpenAI's files and"
        " batches; default: a stack of its own",
    )
    api_key: Annotated[SecretStr | None, Flag("--api-key")] = Field(
        None, description="key for --url; in SLOTSTREAM_API_KEY other users of this machine do not see it"
    )
    window: Annotated[str, Flag("--window")] = Field(
        "30d",
        description="span of time, such as 12h or 7d, after which lines that are not done are given up; a service that"
        " is no slotstream gets 24h unless this says otherwise",
    )
    restart: Annotated[bool, Flag("--restart")] = Field(
        False, description="forget an earlier run with this output and start over"
    )
    redis_url: Annotated[SecretStr | None, Flag("--redis-url")] = Field(  # type: ignore[assignment]
        None, description="Redis or Valkey for a stack of its own, instead of the embedded one"
    )
    workers: Annotated[int, Flag("--workers")] = Field(1, ge=1, le=64, description="worker processes")
    state_dir: Annotated[Path | None, Flag("--state-dir")] = Field(
        None,
        description="folder for progress and the embedded server's data; default: one for each --output, in the user's"
        " state folder",
    )


class JobsSettings(Settings):
    """Which service a client asks, and as whom."""

    role: ClassVar[str] = "jobs"
    group: ClassVar[str] = "service"

    url: Annotated[str, Flag("--url")] = Field(
        "http://127.0.0.1:8080", description="a running slotstream; also in SLOTSTREAM_URL"
    )
    api_key: Annotated[SecretStr | None, Flag("--api-key")] = Field(
        None, description="key for it; in SLOTSTREAM_API_KEY other users of this machine do not see it"
    )
