"""The base of everything that crosses a process: frozen, strict, compact JSON."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A value between processes. Unknown fields are dropped, so that old and new workers can mix."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def to_json(self) -> str:
        return self.model_dump_json(exclude_defaults=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls.model_validate_json(text)
