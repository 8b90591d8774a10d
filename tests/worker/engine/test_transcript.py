import base64
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.events import ChosenLogprob, StopType
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


def scored(token: int, content: bytes) -> ChosenLogprob:
    return ChosenLogprob(id=token, piece=base64.b64encode(content).decode(), logprob=-float(token))


def pieces_of(heard: Transcript) -> list[bytes]:
    return [logprob.piece_bytes for logprob in heard.logprobs]


def hear(pieces: Sequence[bytes], *stops: str, n_indent: int = 0) -> tuple[Transcript, list[ChosenLogprob]]:
    """A transcript of tokens with logprobs, and those that it said."""
    heard = Transcript(stops, lambda token: pieces[token], n_indent)
    told: list[ChosenLogprob] = []
    for token, piece in enumerate(pieces):
        utterance = heard.push(token, scored(token, piece), is_last=token == len(pieces) - 1)
        told += utterance.logprobs if utterance else ()
        if heard.stop_type:
            break
    return heard, told


@pytest.mark.parametrize(
    ("pieces", "stop", "left"),
    [
        ([b"Hello", b" world", b"!"], "!", [b"Hello", b" world"]),
        ([b"Hello", b" ", b"there", b"STOP"], "STOP", [b"Hello", b" ", b"there"]),
        ([b"Hello", b" the", b"re!"], "there!", [b"Hello", b" "]),
        ([b"Hello", b" world", b"END"], "END", [b"Hello", b" world"]),
        ([b"Text", b" ", b"with", b" ", b"stop", b" ", b"word"], "stop word", [b"Text", b" ", b"with", b" "]),
        ([b"hello", b"wor"], "or", [b"hello", b"w"]),
        ([b"hello", b" wor"], "llo w", [b"he"]),
        ([b"EN", b"D!"], "END", []),
        ([b"a", b"b"], "z", [b"a", b"b"]),
        (["👋".encode()[:2], "👋".encode()[2:], b"x"], "x", ["👋".encode()[:2], "👋".encode()[2:]]),
        ([b"a", "👋".encode()[:2], "👋".encode()[2:]], "👋", [b"a"]),
        ([b"\xff", b"ab"], "b", [b"\xff", b"ab"]),
    ],
)
def test_logprobs_are_those_of_the_text_without_its_stop(pieces: list[bytes], stop: str, left: list[bytes]) -> None:
    heard, told = hear(pieces, stop)
    assert pieces_of(heard) == left
    assert [logprob.id for logprob in told] == [logprob.id for logprob in heard.logprobs]
    if "\ufffd" not in heard.text:
        assert b"".join(left).decode() == heard.text


def test_a_line_without_indentation_ends_the_text_as_a_limit() -> None:
    heard, told = hear([b"if x:\n", b"  y", b"\nz =", b" stop"], "stop", n_indent=2)
    assert (heard.text, heard.stop_type, heard.stopping_word) == ("if x:\n  y\n", StopType.LIMIT, "")
    assert pieces_of(heard) == [b"if x:\n", b"  y", b"\n"] and tuple(told) == heard.logprobs
    assert heard.has_new_line


def test_of_a_stop_and_a_bad_line_the_first_in_the_text_ends_it() -> None:
    heard, _ = hear([b"a\nb stop"], "stop", n_indent=2)
    assert (heard.text, heard.stop_type) == ("a\n", StopType.LIMIT)
    heard, _ = hear([b"a stop\nb"], "stop", n_indent=2)
    assert (heard.text, heard.stop_type, heard.stopping_word) == ("a ", StopType.WORD, "stop")


def test_logprobs_of_an_earlier_attempt_are_in_the_answer_and_not_said_again() -> None:
    pieces = [b"ab", b"c", b"de", b"f"]
    whole, told = hear(pieces, "ef")
    resumed = Transcript(["ef"], lambda token: pieces[token])
    resumed.replay([0, 1], told[:2])
    again = [each for token in (2, 3) if (each := resumed.push(token, scored(token, pieces[token])))]
    assert [logprob.id for each in again for logprob in each.logprobs] == [2]
    assert resumed.logprobs == whole.logprobs and pieces_of(whole) == [b"ab", b"c", b"d"]


def test_a_logprob_that_was_said_before_its_text_is_not_said_again() -> None:
    pieces = [b"mma", b"mma", b"x"]
    _, told = hear(pieces, "mma!")
    resumed = Transcript(["mma!"], lambda token: pieces[token])
    resumed.replay([0, 1], told[:2])
    assert resumed.push(2, told[2]) == Utterance("mmax", (2,), (told[2],))


def test_the_end_of_a_generation_has_no_logprob() -> None:
    heard = transcript()
    heard.push(0, scored(0, b"alpha"))
    assert heard.push(8, None, is_last=True) == Utterance("", (8,))
    assert pieces_of(heard) == [b"alpha"]
