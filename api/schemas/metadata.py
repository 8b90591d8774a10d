"""What a client may note on what it makes, as OpenAI bounds it: 16 pairs of short texts. Read by nobody else."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
]
