"""What the settings ask for: a model, perhaps a projector, and how they may be fetched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr
from yarl import URL

from shared.settings import ConfigError, WorkerSettings
from worker.demo import demo_model_path
from worker.download.cache import Cache
from worker.download.failures import DownloadFailed
from worker.download.source import FromFile, FromHub, FromUrl, ModelFiles, Source, Terms


@dataclass(frozen=True, slots=True)
class Order:
    model: Source
    projector: Source | None
    """One that is asked for by itself; that of a repository comes with its model."""
    terms: Terms

    @classmethod
    def of(cls, settings: WorkerSettings) -> Order:
        """Nothing is fetched yet. ConfigError."""
        settings.check()
        return cls(_model(settings), _projector(settings), _terms(settings))

    @property
    def name(self) -> str:
        """What clients call the model where no alias is given."""
        return self.model.name

    @property
    def is_elsewhere(self) -> bool:
        """Whether a part of it is not named as a file of this machine: it may have to be fetched."""
        return self.projector is not None or not isinstance(self.model, FromFile)

    async def files(
        self,
        on_progress: Callable[[float], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> ModelFiles:
        """All there, fetched if need be. `on_progress` hears 0 to 1, `on_trouble` why something is tried again.
        DownloadFailed."""
        terms = replace(self.terms, patience=replace(self.terms.patience, on_trouble=on_trouble))
        try:
            if self.projector is None:
                return await self.model.files(terms, on_progress)
            model = await self.model.files(terms, lambda share: on_progress(share / 2))
            projector = await self.projector.files(terms, lambda share: on_progress((1 + share) / 2))
        except OSError as error:
            raise DownloadFailed(f"{error.filename or self.terms.cache.folder}: {error.strerror}") from error
        return ModelFiles(model.model, projector.model)


def found(settings: WorkerSettings, files: ModelFiles) -> WorkerSettings:
    """The settings of somebody who had all files here and named them."""
    elsewhere = dict.fromkeys(("hf_repo", "hf_file", "model_url", "model_sha256", "mmproj_url"), "")
    here = {"model": str(files.model), "mmproj": files.projector or settings.mmproj}
    return settings.model_copy(update=elsewhere | here)


def _model(settings: WorkerSettings) -> Source:
    if settings.hf_repo:
        try:
            return FromHub.of(settings.hf_repo, file=settings.hf_file, revision=settings.hf_revision)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if settings.model_url:
        try:
            return FromUrl.of(settings.model_url, settings.model_sha256)
        except ValueError as error:
            raise ConfigError(f"--model-url: {error}") from None
    if settings.origin is None:
        raise ConfigError("which model? --model names a GGUF file or `demo`, --hf-repo a repository, --model-url a URL")
    return FromFile(demo_model_path() if settings.model == "demo" else Path(settings.model))


def _projector(settings: WorkerSettings) -> Source | None:
    if not settings.mmproj_url or not settings.mmproj_auto:
        return None
    try:
        return FromUrl.of(settings.mmproj_url)
    except ValueError as error:
        raise ConfigError(f"--mmproj-url: {error}") from None


def _terms(settings: WorkerSettings) -> Terms:
    try:
        endpoint = URL(settings.hf_endpoint)
    except ValueError as error:
        raise ConfigError(f"--hf-endpoint: {error}") from None
    if endpoint.scheme not in ("http", "https") or not endpoint.host:
        raise ConfigError("--hf-endpoint: a URL must begin with http:// or https:// and name a host")
    try:
        cache = Cache.of(settings.cache_dir)
    except DownloadFailed as error:
        raise ConfigError(str(error)) from None
    return Terms(
        cache,
        endpoint,
        _token(settings),
        is_offline=settings.offline,
        has_bar=settings.log_format != "json" and sys.stderr.isatty(),
        wants_projector=settings.mmproj_auto and not (settings.mmproj or settings.mmproj_url),
    )


def _token(settings: WorkerSettings) -> SecretStr | None:
    """Without what a file that it was read from has behind it. ConfigError for what no header can hold."""
    token = settings.hf_token.get_secret_value().strip() if settings.hf_token else ""
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError("--hf-token: a token has neither spaces nor other characters than those of ASCII")
    return SecretStr(token) if token else None
