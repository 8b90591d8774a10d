from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.transcript import Transcript, Utterance

WORDS = [b"alpha", b" be", b"ta", b" ga", b"mma", "👋".encode()[:2], "👋".encode()[2:], b"x ta", b"", b"\xff", b"c"]
"""What the ids 0, 1, ... stand for."""


def transcript(*stops: str) -> Transcript:
    return Transcript(stops, WORDS.__getitem__)


def say(heard: Transcript, ids: Sequence[int]) -> list[Utterance]:
    """Push all, the last one as the last."""
    said = [heard.push(token, is_last=at == len(ids) - 1) for at, token in enumerate(ids)]
    return [utterance for utterance in said if utterance is not None]


def test_ids_held_back_come_with_the_text_that_releases_them() -> None:
    heard = transcript("ta gammo")
    assert say(heard, [0, 1, 2, 3, 4]) == [
        Utterance("alpha", (0,)),
        Utterance(" be", (1,)),
        Utterance("ta gamma", (2, 3, 4)),
    ]


def test_half_a_character_waits_for_its_other_half() -> None:
    assert say(transcript(), [5, 6]) == [Utterance("👋", (5, 6))]


def test_half_a_character_at_the_limit_is_one_mark() -> None:
    assert say(transcript(), [0, 5]) == [Utterance("alpha", (0,)), Utterance("\ufffd", (5,))]


def test_ids_of_the_stop_are_not_said() -> None:
    heard = transcript("ta ga")
    assert say(heard, [0, 1, 2, 3]) == [Utterance("alpha", (0,)), Utterance(" be", (1,))]
    assert (heard.text, heard.stopping_word, heard.ids) == ("alpha be", "ta ga", [0, 1, 2, 3])


def test_text_before_a_stop_is_never_said_without_an_id() -> None:
    """Else a continuation would find it nowhere in the log, and say it again."""
    heard = transcript("ta g", "c")
    said = [heard.push(token) for token in (7, 10)]
    assert said == [Utterance("x ", (7,)), Utterance("ta", (10,))]


def test_a_token_that_is_held_back_is_said_if_it_releases_another() -> None:
    """Else a continuation behind the other would hold it back again, and say it twice."""
    heard = transcript("mma\ufffd")
    said = [heard.push(token) for token in (4, 4)]
    assert said == [None, Utterance("mma", (4, 4))]
    again = transcript("mma\ufffd")
    again.replay([4, 4])
    assert (again.text, again.flush()) == ("mma", Utterance("mma", ()))


def test_a_token_without_text_goes_with_the_next_or_at_the_end() -> None:
    assert say(transcript(), [8, 0, 8]) == [Utterance("alpha", (8, 0)), Utterance("", (8,))]


def test_the_rest_is_said_when_the_end_comes_from_outside() -> None:
    heard = transcript("ta ga")
    heard.push(2)
    assert heard.flush() == Utterance("ta", (2,))
    assert heard.flush() is None


@given(
    ids=st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=12),
    stops=st.lists(st.sampled_from(["ta ga", "c", "👋x", "x", "a\ufffd", "mma\ufffd"]), max_size=2),
    n_heard=st.integers(0, 12),
)
def test_a_replayed_log_goes_on_where_it_ended(ids: list[int], stops: list[str], n_heard: int) -> None:
    whole = transcript(*stops)
    utterances = []
    for at, token in enumerate(ids):
        utterance = whole.push(token, is_last=at == len(ids) - 1)
        utterances += [utterance] if utterance else []
        if whole.stopping_word:
            break
    logged = utterances[:n_heard]
    replayed = [token for utterance in logged for token in utterance.ids]

    resumed = transcript(*stops)
    resumed.replay(replayed)
    said = "".join(utterance.text for utterance in logged)
    if not resumed.stopping_word and len(replayed) < len(ids):
        for at, token in enumerate(ids[len(replayed) :], start=len(replayed)):
            utterance = resumed.push(token, is_last=at == len(ids) - 1)
            said += utterance.text if utterance else ""
            if resumed.stopping_word:
                break
    elif not resumed.stopping_word:
        resumed.flush()
    assert said == resumed.text == whole.text
    assert resumed.stopping_word == whole.stopping_word


@pytest.mark.parametrize("ids", [[5], [5, 9], [9, 9, 5]])
def test_text_is_always_valid_unicode(ids: list[int]) -> None:
    heard = transcript()
    say(heard, ids)
    assert heard.text.encode().decode() == heard.text
    assert set(heard.text) == {"\ufffd"}
