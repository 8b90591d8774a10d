"""llama.cpp's `POST /slots/{id}?action=`: what is to be done with a slot's cache, and what was. Knows no worker."""

from __future__ import annotations

from typing import Annotated, Any

from api.schemas.strict import ClientFields, by_hand
from shared.errors import InvalidRequest
from shared.events import Finished, SlotReport
from shared.filenames import is_safe_filename
from shared.jobs import SlotAction

MOST_DIGITS = 9


class SlotFields(ClientFields):
    model: str | None = None
    filename: Annotated[Any, by_hand(str)] = None


def slot_number(text: str) -> int:
    """As clients count, over all workers. Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise InvalidRequest("Invalid slot ID")
    return int(text)


def slot_action(action: str, slot: int, fields: SlotFields) -> SlotAction:
    """With the slot as its worker counts. Raises InvalidRequest."""
    match action:
        case "erase":
            return SlotAction(action="erase", slot=slot)
        case "save" | "restore":
            filename = fields.filename
            if not isinstance(filename, str) or not is_safe_filename(filename):
                raise InvalidRequest("Invalid filename", param="filename")
            return SlotAction(action=action, slot=slot, filename=filename)
    raise InvalidRequest("Invalid action", param="action")


def report_json(request: SlotAction, number: int, ending: Finished) -> dict[str, Any]:
    """`number`: of the slot, as clients count."""
    report = next(part for part in ending.parts if isinstance(part, SlotReport))
    match request.action:
        case "erase":
            return {"id_slot": number, "n_erased": report.n_tokens}
        case "save":
            counts = {"n_saved": report.n_tokens, "n_written": report.n_bytes, "timings": {"save_ms": report.ms}}
        case "restore":
            counts = {"n_restored": report.n_tokens, "n_read": report.n_bytes, "timings": {"restore_ms": report.ms}}
    return {"id_slot": number, "filename": request.filename, **counts}
