"""llama.cpp's slots: what they do, what is to be done with the cache of one (`POST /slots/{id}?action=`), and what was.

Knows no route.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Any

from api.schemas.settings import shown_settings_json
from api.schemas.strict import ClientFields, by_hand
from shared.bus import SlotState, WorkerState
from shared.errors import InvalidRequest
from shared.events import Finished, SlotReport
from shared.filenames import is_safe_filename
from shared.jobs import SlotAction

MOST_DIGITS = 9


def slot_json(number: int, worker: WorkerState, slot: SlotState) -> dict[str, Any]:
    """Under the names of today's server and of that of 2024, which had the settings beside the rest. `number` is as
    clients count. No text and no job of anybody: whoever may see slots may not see others' work."""
    params = shown_settings_json(slot.asked, model=worker.model.name) if slot.asked else {}
    return {
        **params,
        "id": number,
        "id_task": _task_number(slot),
        "worker": worker.id,
        "worker_slot": slot.id,
        "model": worker.model.name,
        "n_ctx": slot.n_ctx,
        "speculative": False,
        "is_processing": slot.is_processing,
        "state": int(slot.is_processing),
        "n_prompt_tokens": slot.n_prompt_tokens,
        "n_prompt_tokens_processed": slot.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": slot.n_prompt_tokens_cache,
        **({"params": params} if params else {}),  # a slot that never had a text has none
        "next_token": [
            {
                "has_next_token": slot.is_processing,
                "has_new_line": slot.has_new_line,
                "n_remain": slot.n_remain,
                "n_decoded": slot.n_decoded,
            }
        ],
    }


def _task_number(slot: SlotState) -> int:
    """Another one for another job, so that watchers see it change, from which nobody comes by the job's id; -1 for
    none."""
    return -1 if slot.job_id is None else zlib.crc32(slot.job_id.encode()) & 0x7FFFFFFF


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
