"""llama.cpp's `/props`: what a server serves and how, under the names of today's server and of that of 2024.

Knows no route and no worker, only what was told of them.
"""

from __future__ import annotations

from typing import Any

from api.schemas.answers import FINGERPRINT
from api.schemas.pictures import MEDIA_MARKER
from api.schemas.settings import default_settings_json
from shared.bus import ModelCard
from shared.events import Properties
from shared.jobs import Generation
from shared.settings import ApiSettings


def properties_json(
    card: ModelCard, told: Properties, n_slots: int, settings: ApiSettings, defaults: Generation
) -> dict[str, Any]:
    """`n_slots` are those of all workers of the model; `defaults` is a request that says nothing but its prompt."""
    shown = default_settings_json(defaults, model=card.name)
    properties = {
        # Today's server has them under `params`, that of 2024 had them beside the size of the context.
        "default_generation_settings": {**shown, "params": shown, "n_ctx": card.n_ctx},
        "total_slots": n_slots,
        "model_alias": card.name,
        "model_ftype": card.ftype,
        "model_path": card.path,
        "modalities": {"vision": card.has_vision, "video": False, "audio": False},
        "media_marker": MEDIA_MARKER,
        "endpoint_slots": settings.slots,
        "endpoint_props": False,
        "endpoint_metrics": settings.metrics,
        "ui": False,
        "ui_settings": {},
        "chat_template": told.chat_template,
        "chat_template_caps": told.chat_template_caps,
        "bos_token": card.bos_token,
        "eos_token": card.eos_token,
        "build_info": FINGERPRINT,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
        # Of 2024: they came from a system prompt that one client set for all.
        "user_name": "",
        "assistant_name": "",
    }
    if told.tool_template:
        properties["chat_template_tool_use"] = told.tool_template
    return properties
