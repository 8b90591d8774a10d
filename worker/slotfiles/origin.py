"""Where a saved state is good for: llama.cpp would take an equal-shaped stranger's, and say nonsense with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shared.wire import Wire
from worker.engine import EngineConfig, ModelFacts

SAMPLED_BYTES = 64 * 1024
N_SAMPLES = 64
"""Pieces of a file of weights that are looked at: a finetune differs from its base almost everywhere, and to read all
of it would take as long as to load it."""


class Origin(Wire):
    """The model, and what its cache was made with."""

    model: str
    """Digest of its metadata and of samples of its file."""
    description: str
    n_vocab: int
    cache: str
    """Types of K and V."""
    positions: str
    """What decides where a token stands and what a cell knows of that; as JSON."""
    adapters: tuple[str, ...] = ()
    """Digests of their files, by id."""

    def refusal(self, saved: Origin) -> str | None:
        """Why a state that was saved there is of no use here, in half a sentence. Adapters are another matter: those
        that it was computed with must be here, others may be."""
        if (self.model, self.n_vocab) != (saved.model, saved.n_vocab):
            return f"it was saved from another model, {saved.description}"
        if self.cache != saved.cache:
            return f"its cache has the types {saved.cache}, and this worker's {self.cache}"
        if self.positions != saved.positions:
            return "the worker that saved it had other settings of positions (RoPE, self-extend or sliding windows)"
        return None


def origin_of(facts: ModelFacts, config: EngineConfig, adapters: Sequence[Path]) -> Origin:
    """Reads some MB of the files. OSError when they have gone."""
    positions = {
        "rope": asdict(config.positions),
        "grouping": config.grouping,
        "full_windows": config.has_full_windows,
    }
    metadata = json.dumps(facts.metadata, sort_keys=True).encode()
    return Origin(
        model=f"{hashlib.sha256(metadata).hexdigest()}-{digest_of(facts.path)}",
        description=facts.description,
        n_vocab=facts.n_vocab,
        cache=f"{config.cache_type_k} and {config.cache_type_v}",
        positions=json.dumps(positions, sort_keys=True),
        adapters=tuple(map(digest_of, adapters)),
    )


def digest_of(path: Path) -> str:
    """Of a file's length, its first and last piece, and others at equal distances."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        n_bytes = file.seek(0, 2)
        digest.update(n_bytes.to_bytes(8, "little"))
        last = max(0, n_bytes - SAMPLED_BYTES)
        for number in range(N_SAMPLES):
            file.seek(last * number // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()
