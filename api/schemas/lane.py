"""Which model is asked and how soon the answer is wanted: what every request may say."""

from __future__ import annotations

from pydantic import Field

from api.schemas.strict import ClientFields
from shared.jobs import Lane


class LaneFields(ClientFields):
    model: str | None = None
    """Any name while one model is served."""
    priority: Lane | None = Field(None, strict=False)
    """Interactive goes before bulk."""
    service_tier: str | None = None
    """OpenAI's word for the same: 'flex' is bulk."""

    @property
    def lane(self) -> Lane | None:
        """`priority` counts before OpenAI's word for the same. None when the client does not say."""
        return self.priority or (Lane.BULK if self.service_tier == "flex" else None)

    @property
    def tier(self) -> str | None:
        """OpenAI's word for what was given, where that was asked for in its words."""
        if self.service_tier is None:
            return None
        return "flex" if self.lane is Lane.BULK else "default"
