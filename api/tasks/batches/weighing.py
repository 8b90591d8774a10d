"""How much of a batch is on its way at once: lines, and what they weigh in the memory of Redis and of workers.

Weights are of this process alone and may be forgotten: of a line that another one fed, the average of the plan counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from shared.batches import Batch
from shared.bus.enqueuing import UNKNOWN_LENGTH
from shared.jobs import Completion, Embedding, Generation, Request, Rerank

MAX_WEIGHT = 64_000_000
"""Bytes of requests and results of one batch that are on their way; a heavier line goes alone."""

TOKEN = 48
"""Bytes of a token that was generated: in the log with its text, and once more in the result with both."""
PROBABILITY = 160
"""Bytes of one alternative of a token, in the log and in the result."""
NUMBER = 6
"""Bytes of one number of an embedding, in base64."""
N_EMBD = 4096
"""Numbers of an embedding of a model that does not say."""
SCORE = 100
"""Bytes of a document's score."""
OVERHEAD = 2_000
"""Bytes of a job's hash and of its places besides."""

N_BATCHES = 256
"""Whose lines' weights are remembered."""


def weight_of(request: Request, n_bytes: int, n_embd: int = 0) -> int:
    """Of a line of the plan that has `n_bytes`: its request, and the result that it asks for, in which a generation has
    its prompt once more. `n_embd`: of the model, 0 if it does not say."""
    return n_bytes + OVERHEAD + _of_result(request, n_bytes, n_embd or N_EMBD)


def _of_result(request: Request, n_bytes: int, n_embd: int) -> int:
    match request:
        case Generation():
            n_tokens = request.n_predict if request.n_predict >= 0 else UNKNOWN_LENGTH
            n_each = TOKEN + PROBABILITY * (request.n_probs + 1 if request.wants_logprobs else 0)
            n_prompts = request.n_prompts if isinstance(request, Completion) else 1
            return request.n_sequences * n_tokens * n_each + n_bytes * request.n_sequences // n_prompts
        case Embedding(inputs=inputs):
            return NUMBER * n_embd * len(inputs)
        case Rerank(documents=documents):
            return SCORE * len(documents)
    return 0


class Weights:
    """Of lines that are on their way, by their jobs' ids."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, dict[str, int]] = OrderedDict()

    def of(self, batch: Batch, flights: Iterable[str]) -> int:
        """Of all that is on its way; what is not any more is forgotten."""
        known = self._known.get(batch.id, {})
        average = 2 * batch.plan_offset // batch.n_fed + OVERHEAD if batch.n_fed else 0
        weights = {job_id: known.get(job_id, average) for job_id in flights}
        self._keep(batch.id, weights)
        return sum(weights.values())

    def add(self, batch_id: str, weights: Mapping[str, int]) -> None:
        self._keep(batch_id, {**self._known.get(batch_id, {}), **weights})

    def forget(self, batch_id: str) -> None:
        self._known.pop(batch_id, None)

    def _keep(self, batch_id: str, weights: dict[str, int]) -> None:
        self._known[batch_id] = weights
        self._known.move_to_end(batch_id)
        while len(self._known) > N_BATCHES:
            self._known.popitem(last=False)
