"""What a worker tells of its model when it is asked: more than the card that it announces all the time.

Knows no jobs. Thread-safe.
"""

from __future__ import annotations

from functools import cached_property

import structlog

from shared.events import Properties
from worker.chat import Dialect
from worker.engine import ModelFacts
from worker.metadata import Value, read_metadata

LONGEST_TEMPLATE = 128_000
"""Characters. A longer one is not told, since the answer travels in one piece; real ones have some thousand."""

log = structlog.get_logger(__name__)


class Describer:
    def __init__(self, facts: ModelFacts, dialect: Dialect, *, can_generate: bool = True) -> None:
        self._facts = facts
        self._dialect = dialect
        self._can_generate = can_generate

    @cached_property
    def properties(self) -> Properties:
        """The file's head is read when this is first asked for, and once."""
        return Properties(
            metadata=self._metadata(),
            chat_template=_told(self._dialect.template.source),
            tool_template=_told(self._facts.tool_template),
            chat_template_caps=self._dialect.capabilities,
            reply=self._dialect.tool_reply,
            can_infill=self._can_generate and self._facts.fill.is_whole,
        )

    def _metadata(self) -> dict[str, Value]:
        """As the model was loaded with it: what was overridden counts."""
        try:
            metadata = read_metadata(self._facts.path)
        except (OSError, ValueError) as error:
            # It was read a moment ago, so somebody has moved it, or is writing it anew. The model works all the same.
            log.warning("the model's file cannot be read again", path=str(self._facts.path), reason=str(error))
            metadata = {}
        return metadata | {each.key: each.value for each in self._facts.overrides}


def _told(template: str) -> str:
    return template if len(template) <= LONGEST_TEMPLATE else ""
