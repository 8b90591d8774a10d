"""llama.cpp's server of May 2024, as its clients knew it: today's readers with the defaults and the shapes of then.

An answer has all of today's keys too, where the two do not exclude each other. What then was a fault is not repeated:
errors keep their status, a seed is the one that was used, and arrays are streamed.
"""

from api.schemas.of_2024.chat import chat
from api.schemas.of_2024.completion import completion, infill
from api.schemas.of_2024.embeddings import embeddings
from api.schemas.of_2024.status import health, slot

__all__ = ["chat", "completion", "embeddings", "health", "infill", "slot"]
