import numpy as np

from worker.engine.logprobs import logprob_of
from worker.engine.sampling import Choice, Scores

WORDS = [b"a", b"\xff", "é".encode()]


def test_scores_are_told_with_the_bytes_of_their_tokens() -> None:
    scores = Scores(-0.5, np.array([2, 1]), np.array([-0.25, -2.0], dtype=np.float32))
    told = logprob_of(Choice(1, scores), WORDS.__getitem__)
    assert told is not None
    assert (told.id, told.piece_bytes, told.logprob) == (1, b"\xff", -0.5)
    assert [(each.id, each.piece_bytes, each.logprob) for each in told.top] == [
        (2, WORDS[2], -0.25),
        (1, b"\xff", -2.0),
    ]
    assert told.from_json(told.to_json()) == told


def test_nothing_is_told_of_what_was_not_scored() -> None:
    assert logprob_of(Choice(1), WORDS.__getitem__) is None
