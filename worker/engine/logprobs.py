"""How likely tokens were, as clients are told of it. Knows no sequences."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from shared.events import ChosenLogprob, Logprob
from worker.engine.sampling import Choice

TokenBytes = Callable[[int], bytes]


def logprob_of(choice: Choice, token_bytes: TokenBytes) -> ChosenLogprob | None:
    """What the sampler scored, with the bytes of the tokens; None when it did not."""
    scores = choice.scores
    if scores is None:
        return None
    top = tuple(
        Logprob(id=token, piece=_base64(token_bytes(token)), logprob=logprob)
        for token, logprob in zip(scores.ids.tolist(), scores.logprobs.tolist(), strict=True)
    )
    piece = _base64(token_bytes(choice.token))
    return ChosenLogprob(id=choice.token, piece=piece, logprob=scores.logprob, top=top)


def cut_to(text: str, logprobs: Sequence[ChosenLogprob]) -> tuple[ChosenLogprob, ...]:
    """Those of a text that a stop cut within its last token: that one's piece ends where the text does, so that all
    pieces together are the text's bytes. Where they are not UTF-8, they cannot be, and the piece stays whole."""
    whole, content = b"".join(each.piece_bytes for each in logprobs), text.encode()
    n_over = len(whole) - len(content)
    if not logprobs or n_over <= 0 or not whole.startswith(content):
        return tuple(logprobs)
    piece = logprobs[-1].piece_bytes
    return (*logprobs[:-1], logprobs[-1].model_copy(update={"piece": _base64(piece[: max(0, len(piece) - n_over)])}))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
