"""A file as the bus knows it: who has it, what it is called, and in which objects of the store its bytes are.

Names that clients give are shown to them again and used for nothing else. Knows no store and no Redis.
"""

from __future__ import annotations

from enum import StrEnum

from shared.wire import Wire


class Purpose(StrEnum):
    """What a client says that a file is for; only `batch` means something here."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"
    BATCH_OUTPUT = "batch_output"
    """Made here: results, and errors too."""


class Piece(Wire):
    """An object of the store that is a part of a file, in the order of the file."""

    name: str
    n_bytes: int


class FileRecord(Wire):
    """Times are Unix seconds on the bus's clock."""

    id: str
    tenant: str
    filename: str
    """As it was given; made by us for what we make."""
    purpose: Purpose
    created_at: float
    expires_at: float | None = None
    """From then on it is gone, whether or not its bytes have been deleted yet."""
    pieces: tuple[Piece, ...]
    is_growing: bool = False
    """More will come: results of a batch that runs. It is in no list."""

    @property
    def n_bytes(self) -> int:
        return sum(piece.n_bytes for piece in self.pieces)


def object_of(file_id: str) -> str:
    """Where in the store an uploaded file is."""
    return f"files/{file_id}"
