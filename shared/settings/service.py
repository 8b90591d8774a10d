"""Settings of what stands before the workers: the HTTP API, files, webhooks, and the tasks behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from shared.jobs import Compat
from shared.settings.bus import BusSettings
from shared.settings.flags import Flag
from shared.settings.sources import ConfigError, Settings
from shared.settings.values import (
    LONGEST_S,
    Hosts,
    Prefix,
    Secrets,
    Texts,
)
from shared.webhooks import key_of


class RequestSettings(Settings):
    """What clients' requests may have and name, whether they come alone or as lines of a file."""

    group: ClassVar[str] = "requests"

    max_body_mb: Annotated[float, Flag("--max-body-mb")] = Field(
        32.0, gt=0, le=100_000, description="largest request body in MB"
    )
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
        description="hosts that may be called on a client's word, for images and webhooks, though they are private or"
        " on ports besides 80 and 443: names, addresses and networks, with commas",
    )

    @property
    def max_body(self) -> int:
        """Bytes."""
        return int(self.max_body_mb * 1_000_000)

    @property
    def max_image(self) -> int:
        """Bytes of one image's file."""
        return int(self.max_image_mb * 1_000_000)


class StoreUrlSettings(Settings):
    """Where files are."""

    group: ClassVar[str] = "store of files"

    store_url: Annotated[SecretStr, Flag("--store-url")] = Field(
        SecretStr(""),
        description="folder, or URL such as s3://BUCKET/PREFIX, for files, and for requests and results that are too"
        " large for Redis; the same for all processes. Default: `files` in --state-dir; where there"
        " is none, in the user's state folder of slotstream, and what is large stays in Redis",
    )

    @property
    def shared_store_url(self) -> str | None:
        """Of a store that others are said to have too; None where nothing was said."""
        return self.store_url.get_secret_value() or None


class StoreSettings(StoreUrlSettings):
    """How large and old files get."""

    group: ClassVar[str] = "files and batches"

    max_file_mb: Annotated[float, Flag("--max-file-mb")] = Field(
        512.0, gt=0, le=100_000, description="largest file that is taken, in MB"
    )
    max_batch_mb: Annotated[float, Flag("--max-batch-mb")] = Field(
        200.0, gt=0, le=100_000, description="largest file of a batch, in MB"
    )
    max_batch_lines: Annotated[int, Flag("--max-batch-lines")] = Field(
        50_000, ge=1, le=10_000_000, description="most lines of a batch"
    )
    file_retention_s: Annotated[float, Flag("--file-retention-s")] = Field(
        30 * 86400.0,
        ge=1,
        le=LONGEST_S,
        description="seconds for which files are kept that name no time of their own, and batches after their end",
    )
    batch_in_flight: Annotated[int | None, Flag("--batch-in-flight")] = Field(
        None,
        ge=1,
        le=100_000,
        description="lines of one batch that are in the queue or at work at any time; by default 256, or two for each"
        " slot of all workers if that is more",
    )


class WebhookSettings(Settings):
    """How others are told when work is done."""

    group: ClassVar[str] = "webhooks"

    webhook_secret: Annotated[SecretStr | None, Flag("--webhook-secret")] = Field(
        None,
        description="whsec_ and base64 of 24 to 64 bytes: signs for webhooks of jobs and batches that name no secret of"
        " their own; in SLOTSTREAM_WEBHOOK_SECRET other users of this machine do not see it",
    )
    webhook_timeout_s: Annotated[float, Flag("--webhook-timeout-s")] = Field(
        15.0, gt=0, le=25, description="seconds that a receiver may take for its answer"
    )

    def check(self) -> None:
        super().check()
        if self.webhook_secret is not None:
            try:
                key_of(self.webhook_secret)
            except ValueError as error:
                raise ConfigError(f"--webhook-secret {error}") from None


class ApiSettings(RequestSettings, StoreSettings, WebhookSettings, BusSettings):
    role: ClassVar[str] = "api"
    group: ClassVar[str] = "http"

    host: Annotated[str, Flag("--host")] = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Flag("--port")] = Field(
        8080, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    api_key: Annotated[Secrets, Flag("--api-key")] = Field(
        (), description="key that clients must send; several with commas, or the flag again; each is a tenant"
    )
    api_key_file: Annotated[Path | None, Flag("--api-key-file")] = Field(
        None, description="file with more such keys, one a line; lines that begin with # are comments"
    )
    ssl_key_file: Annotated[Path | None, Flag("--ssl-key-file")] = Field(
        None, description="PEM file of a private key: the port speaks https, with the certificate of --ssl-cert-file"
    )
    ssl_cert_file: Annotated[Path | None, Flag("--ssl-cert-file")] = Field(
        None, description="PEM file of that certificate, and of those between it and its root"
    )
    api_prefix: Annotated[Prefix, Flag("--api-prefix")] = Field(
        "", description="what all paths begin with, such as /llm, also those of /health"
    )
    cors_origins: Annotated[Texts, Flag("--cors-origins")] = Field(
        ("*",),
        description="origins whose pages may read answers, with commas: https://HOST, localhost for any of this"
        " machine, or * for all",
    )
    timeout: Annotated[float, Flag("-to", "--timeout")] = Field(
        600.0,
        gt=0,
        le=86400,
        description="seconds after which a client is let go that takes nothing of its answer; one that is slow to send"
        " a request gets 20, and one more for each 500 bytes of its body, or as many as this says if that is less",
    )
    max_connections: Annotated[int, Flag("--max-connections")] = Field(
        4096, ge=1, le=1_000_000, description="clients' connections at any time; more get 503"
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
    slots: Annotated[bool, Flag("--slots")] = Field(True, description="show at /slots what slots do")
    metrics: Annotated[bool, Flag("--metrics")] = Field(
        True, description="count at /metrics, for Prometheus, what was done"
    )
    compat: Annotated[Compat, Flag("--compat")] = Field(
        Compat.TODAY, description="whose clients are answered as they expect it: 2024 is llama.cpp's server of May 2024"
    )

    def check(self) -> None:
        super().check()
        if (self.ssl_key_file is None) != (self.ssl_cert_file is None):
            given, missing = ("key", "cert") if self.ssl_key_file else ("cert", "key")
            raise ConfigError(f"--ssl-{given}-file is of no use without --ssl-{missing}-file")


class TasksSettings(RequestSettings, StoreSettings, WebhookSettings, BusSettings):
    role: ClassVar[str] = "tasks"
    group: ClassVar[str] = "housekeeping"

    tasks_redis_url: Annotated[SecretStr | None, Flag("--tasks-redis-url")] = Field(
        None, description="a server for housekeeping, which cannot use a Cluster; default: --redis-url"
    )
