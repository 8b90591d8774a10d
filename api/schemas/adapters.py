"""Scales of LoRA adapters, as a client gives them. Knows no worker, so not which adapters there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, RootModel

from api.schemas.sampling import INT32_MAX, Real
from api.schemas.strict import ClientFields
from shared.jobs import MAX_SCALE, Adapter

MAX_ADAPTERS = 256
"""In one list."""


class AdapterFields(ClientFields):
    id: Annotated[int, Field(ge=0, le=INT32_MAX)]
    scale: Annotated[Real, Field(ge=-MAX_SCALE, le=MAX_SCALE)]


Adapters = Annotated[list[AdapterFields], Field(max_length=MAX_ADAPTERS)]


class AdapterListFields(RootModel[Adapters]):
    """A body that is a list: errors name the place in it."""


def adapters_of(given: Sequence[AdapterFields]) -> tuple[Adapter, ...]:
    return tuple(Adapter(id=adapter.id, scale=adapter.scale) for adapter in given)
