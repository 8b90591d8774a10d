"""What can go wrong, as classes with stable codes. Knows nothing of HTTP.

SlotstreamError
├── Rejected                 can never succeed as it stands; do not retry
│   ├── InvalidRequest       a field is wrong; `param` names it
│   ├── PromptTooLong        carries `n_prompt_tokens` and `n_ctx`
│   ├── Unauthenticated      no key, or a wrong one
│   ├── UnknownModel
│   ├── UnknownJob           never was, is another tenant's, or has expired
│   ├── UnknownFile          the same of files
│   ├── UnknownBatch         of batches
│   ├── UnknownWebhook       of webhook endpoints and deliveries
│   ├── NotSupported         the model or this build cannot do that
│   └── IdempotencyConflict  the key was used with another body
├── Unavailable              may succeed later; `retry_after_s` says when
│   ├── QueueFull
│   ├── NotReady             no worker serves, or the model still loads
│   ├── BusUnavailable       Redis cannot be reached or refuses writes
│   └── StoreUnavailable     the store of files cannot be reached, or is full
└── Ended                    the job ended without an answer
    ├── Cancelled
    ├── Expired              its deadline passed
    ├── WorkerDied           it was given up after too many workers died with it
    ├── Unreadable           what is stored of it is no job: damaged, or of a program unlike ours
    └── EngineFailed         llama.cpp failed on this job alone
"""

from __future__ import annotations

from typing import ClassVar


class SlotstreamError(Exception):
    """Root of the tree. `code` is stable and may be stored; `str()` is for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class Rejected(SlotstreamError):
    code = "rejected"


class InvalidRequest(Rejected):
    code = "invalid_request"


class PromptTooLong(Rejected):
    code = "exceed_context_size"

    def __init__(self, message: str, *, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(message)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class Unauthenticated(Rejected):
    code = "unauthenticated"


class UnknownModel(Rejected):
    code = "model_not_found"

    def __init__(self, message: str, *, param: str | None = None, model: str | None = None) -> None:
        super().__init__(message, param=param)
        self.model = model
        """The name that was asked for, if any was."""


class UnknownJob(Rejected):
    code = "job_not_found"


class UnknownFile(Rejected):
    code = "file_not_found"


class UnknownBatch(Rejected):
    code = "batch_not_found"


class UnknownWebhook(Rejected):
    code = "webhook_not_found"


class NotSupported(Rejected):
    code = "not_supported"


class IdempotencyConflict(Rejected):
    code = "idempotency_conflict"


class Unavailable(SlotstreamError):
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Unavailable):
    code = "queue_full"


class NotReady(Unavailable):
    code = "not_ready"


class BusUnavailable(Unavailable):
    code = "bus_unavailable"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class Ended(SlotstreamError):
    code = "ended"


class Cancelled(Ended):
    code = "cancelled"


class Expired(Ended):
    code = "expired"


class WorkerDied(Ended):
    code = "worker_died"


class Unreadable(Ended):
    code = "unreadable"


class EngineFailed(Ended):
    code = "engine_failed"


def _tree(root: type[SlotstreamError]) -> dict[str, type[SlotstreamError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[SlotstreamError]] = _tree(SlotstreamError)
"""Every class of the tree by its code: what a stored failure is turned back with."""
