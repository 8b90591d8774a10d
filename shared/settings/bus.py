"""Settings of the queue that all roles share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from shared.settings.flags import Flag
from shared.settings.sources import Settings
from shared.settings.values import LONGEST_S


class BusSettings(Settings):
    """Where the queue is, and what it promises."""

    group: ClassVar[str] = "queue and log"

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
        86400.0, ge=1, le=LONGEST_S, description="seconds for which an ended job and its result are kept"
    )
    log_retention_s: Annotated[float, Flag("--log-retention-s")] = Field(
        900.0,
        ge=1,
        le=LONGEST_S,
        description="seconds for which the tokens of an ended job can be streamed again",
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
