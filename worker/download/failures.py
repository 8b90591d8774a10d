"""What can go wrong when a model is fetched.

LoadFailed
└── DownloadFailed      for good; the message is a sentence for whoever started the worker
    └── Interrupted     may go better the next time, and is tried again before it becomes for good
"""

from __future__ import annotations

from shared.modelfile import LoadFailed


class DownloadFailed(LoadFailed):
    pass


class Interrupted(DownloadFailed):
    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """What the other side asked for, if it did."""
