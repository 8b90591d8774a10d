import pytest

from worker.engine.text import Detokenizer, IndentMatcher, StopMatcher

FAMILY = "👩‍🚀".encode()


@pytest.mark.parametrize(
    ("pieces", "said", "flushed"),
    [
        ([b"plain", b" text"], ["plain", " text"], ""),
        (["👋".encode()[:2], "👋".encode()[2:]], ["", "👋"], ""),
        ([bytes([byte]) for byte in "日本".encode()], ["", "", "日", "", "", "本"], ""),
        ([bytes([byte]) for byte in FAMILY[:8]], ["", "", "", "👩", "", "", "\u200d", ""], "\ufffd"),
        ([b"\xf0"], [""], "\ufffd"),
        ([b"\xf0\x9f"], [""], "\ufffd"),
        ([b"\xf0\x9f\x91"], [""], "\ufffd"),
        ([b"\xf0\x9f", b"ok"], ["", "\ufffdok"], ""),
        ([b"\xff", b"a"], ["\ufffd", "a"], ""),
        ([b"a\0b"], ["a\0b"], ""),
        ([], [], ""),
    ],
)
def test_a_character_is_said_whole_or_as_one_mark(pieces: list[bytes], said: list[str], flushed: str) -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.push(piece) for piece in pieces] == said
    assert detokenizer.flush() == flushed


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "found"),
    [
        ((), ["all", " of it"], "all of it", ""),
        (("blue whale",), ["red green", " blue"], "red green blue", ""),
        (("blue whale",), ["red green", " blue", " sky"], "red green blue sky", ""),
        (("ta ga",), ["alpha", " beta", " gamma"], "alpha be", "ta ga"),
        (("ta ga",), ["alpha beta gamma"], "alpha be", "ta ga"),
        (("ta ga",), list("alpha beta gamma"), "alpha be", "ta ga"),
        (("world", "hello"), ["say hello world"], "say ", "hello"),
        (("abc", "b"), ["xab", "c"], "xa", "b"),
        (("abc", "b"), ["xabc"], "xa", "b"),
        (("bc", "abc"), ["xabc"], "x", "abc"),
        (("",), ["hello there"], "hello there", ""),
        (("", "there"), ["hello there"], "hello ", "there"),
        (("aab",), ["aa", "aab", "b"], "aa", "aab"),
        (("\0",), ["a\0b"], "a", "\0"),
        (("é😀",), ["caf", "é", "😀"], "caf", "é😀"),
        (("end", "end"), ["the end"], "the ", "end"),
    ],
)
def test_text_ends_before_the_first_stop_and_loses_nothing_else(
    stops: tuple[str, ...], pieces: list[str], text: str, found: str
) -> None:
    matcher = StopMatcher(stops)
    said = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert (said, matcher.found) == (text, found)


def test_what_could_become_a_stop_is_held_back_until_it_cannot() -> None:
    matcher = StopMatcher(["ta ga"])
    assert [matcher.push(piece) for piece in ("alpha be", "ta", " g", "o")] == ["alpha be", "", "", "ta go"]


def test_nothing_is_said_after_a_stop() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("go stop and more") == "go "
    assert matcher.push("more") == matcher.flush() == ""


@pytest.mark.parametrize(
    ("n_indent", "text", "said"),
    [
        (0, "a\nb\n\nc", "a\nb\n\nc"),
        (2, "a\n  b\n c", "a\n  b\n "),
        (2, "a\n\t\tb\nc", "a\n\t\tb\n"),
        (2, "  a\n    b", "  a\n    b"),
        (1, "a\n\n b", "a\n"),
        (1, "a\n \n b", "a\n \n b"),
        (4, "\n   ", "\n   "),
        (1, "\nx", "\n"),
    ],
)
def test_a_line_that_is_less_indented_ends_the_text_however_it_is_cut(n_indent: int, text: str, said: str) -> None:
    for pieces in ([text], list(text)):
        matcher = IndentMatcher(n_indent)
        assert "".join(matcher.push(piece) for piece in pieces) == said
        assert matcher.is_met == (said != text)
        assert matcher.push("more" if matcher.is_met else "") == ""
