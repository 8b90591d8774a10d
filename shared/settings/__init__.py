"""Every setting of every role.

One frozen class a role, made of a class for each heading of its help. A field's name is its key in the TOML file, in
capitals behind `SLOTSTREAM_` its variable, and with dashes its long flag. The file is `--config FILE`, else
`SLOTSTREAM_CONFIG`, else `slotstream.toml` in the current folder when there is one; keys at its top go to every role
that knows them, those in a table `[api]`, `[worker]`, … to that role alone, and to `serve` and `run`, which start it.
Secrets are `SecretStr` and never printed. Where values come from, and who is blamed for a wrong one, is `sources`'
business.
"""

from __future__ import annotations

from shared.settings.bus import BusSettings
from shared.settings.commands import JobsSettings, RunSettings, ServeSettings
from shared.settings.flags import Flag, Parser, add_flags
from shared.settings.service import ApiSettings, RequestSettings, StoreSettings, TasksSettings
from shared.settings.sources import CONFIG_VARIABLE, ROLES, ConfigError, Settings
from shared.settings.values import CacheType, LoadMode
from shared.settings.worker import LEAST_CTX_SLOT, Origin, WorkerSettings

__all__ = [
    "CONFIG_VARIABLE",
    "LEAST_CTX_SLOT",
    "ROLES",
    "ApiSettings",
    "BusSettings",
    "CacheType",
    "ConfigError",
    "Flag",
    "JobsSettings",
    "LoadMode",
    "Origin",
    "Parser",
    "RequestSettings",
    "RunSettings",
    "ServeSettings",
    "Settings",
    "StoreSettings",
    "TasksSettings",
    "WorkerSettings",
    "add_flags",
]
