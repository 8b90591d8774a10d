"""From texts and ids to checked token ids of one model. Knows no jobs and no limits of a context.

Nothing a client sends reaches llama.cpp unchecked: ids are looked up only when the vocabulary has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from shared.errors import InvalidRequest
from shared.events import ReplyForm
from shared.jobs import Prompt, Sampling
from worker.engine import Model
from worker.engine.sampling import NO_BREAKERS, Bias, Breakers

MAX_BIASED = 65_536
"""Tokens with a bias, and characters of the texts that mean them."""
MAX_BREAKERS, MAX_BREAKS = 32, 65_536
"""Texts that interrupt a repetition, and the ways to write them."""
QUICK_CHARACTERS = 65_536
"""Tokenized in some ten milliseconds."""
MAX_BREAKER_BYTES, MAX_BREAKER_TAIL = 40, 20
"""llama.cpp's: what is longer is cut."""


class Piece(NamedTuple):
    """A stretch of a prompt: text, or one token."""

    content: str | int
    parse_special: bool = True
    """Whether control tokens in the text are meant as such."""


def pieces_of(prompt: Prompt, *, parse_special: bool = True) -> list[Piece]:
    """Text is read with its control tokens, as llama.cpp's server does."""
    contents = (prompt,) if isinstance(prompt, str) else prompt
    return [Piece(content, parse_special) for content in contents]


def split(pieces: Iterable[Piece], mark: str) -> list[list[Piece]]:
    """What stands between marks in the texts of pieces: one more than there are marks."""
    runs: list[list[Piece]] = [[]]
    for piece in pieces:
        if not isinstance(piece.content, str):
            runs[-1].append(piece)
            continue
        first, *others = (piece._replace(content=text) for text in piece.content.split(mark))
        runs[-1].append(first)
        runs += [[other] for other in others]
    return runs


class Vocabulary:
    """Thread-safe: the model is only read."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._longest = model.longest_token
        self._breaks = lru_cache(maxsize=16)(self._find_breaks)
        self._breakers = lru_cache(maxsize=16)(self._find_breakers)
        self._controls_in = lru_cache(maxsize=16)(self._find_controls)

    def tokens(self, pieces: Iterable[Piece], field: str, *, add_special: bool) -> tuple[int, ...]:
        """The ids of pieces in a row; the first one, if it is text, gets the BOS. InvalidRequest, with the name of the
        request's field, for an id that the model has not."""
        tokens: list[int] = []
        for position, (content, parse_special) in enumerate(pieces):
            if isinstance(content, str):
                is_first = add_special and position == 0
                tokens += self._model.tokenize(content, add_special=is_first, parse_special=parse_special)
            elif 0 <= content < self._model.facts.n_vocab:
                tokens.append(content)
            else:
                raise InvalidRequest("Prompt contains invalid tokens", param=field)
        return tuple(tokens)

    def n_least(self, pieces: Iterable[Piece]) -> int:
        """Tokens that pieces have at least, known without tokenizing: that takes seconds for megabytes."""
        texts = [content for content, _ in pieces if isinstance(content, str)]
        n_ids = sum(isinstance(content, int) for content, _ in pieces)
        return n_ids + sum(len(text.encode()) for text in texts) // self._longest

    def head(self, pieces: Iterable[Piece], n_tokens: int) -> list[Piece]:
        """As much of the beginning as surely has so many tokens, if all has."""
        room = n_tokens * self._longest
        taken: list[Piece] = []
        for piece in pieces:
            if room <= 0:
                break
            taken.append(piece._replace(content=piece.content[:room]) if isinstance(piece.content, str) else piece)
            room -= self._size(piece)
        return taken

    def tail(self, pieces: Sequence[Piece], n_tokens: int) -> list[Piece]:
        """The same of the end."""
        room = n_tokens * self._longest
        taken: list[Piece] = []
        for piece in reversed(pieces):
            if room <= 0:
                break
            taken.append(piece._replace(content=piece.content[-room:]) if isinstance(piece.content, str) else piece)
            room -= self._size(piece)
        return taken[::-1]

    def ends(self, pieces: Sequence[Piece], n_head: int, n_tail: int) -> list[Piece]:
        """Head and tail, without what is between them; all of the pieces when they are quick to tokenize."""
        n_characters = sum(len(content) for content, _ in pieces if isinstance(content, str))
        # Each side may take an id more than fits.
        if n_characters <= QUICK_CHARACTERS or sum(map(self._size, pieces)) <= (n_head + n_tail + 2) * self._longest:
            return list(pieces)
        return self.head(pieces, n_head) + self.tail(pieces, n_tail)

    def controls_in(self, form: ReplyForm | None) -> frozenset[int]:
        """Control tokens that are words of a form, and have to be shown so that a text can be read."""
        return frozenset() if form is None else self._controls_in(form)

    def _find_controls(self, form: ReplyForm) -> frozenset[int]:
        calls = tuple(form.calls.model_dump().values()) if form.calls is not None else ()
        words = "\n".join((*(form.reasoning or ()), *calls))
        return frozenset(token for token in self._model.control - self._model.eog if self._is_word(token, words))

    def _is_word(self, control: int, words: str) -> bool:
        text = self._model.token_bytes(control, special=True).decode("utf-8", "replace")
        return bool(text) and text in words

    def biases(self, sampling: Sampling) -> Bias:
        """Every token of a text gets its bias, as llama.cpp has it. InvalidRequest for an id that the model has not,
        and for too many."""
        keys = [token for token, _ in sampling.logit_bias]
        if sum(len(key) if isinstance(key, str) else 1 for key in keys) > MAX_BIASED:
            raise InvalidRequest(f"at most {MAX_BIASED} tokens can have a bias", param="logit_bias")
        biases: list[tuple[int, float | None]] = []
        for key, bias in sampling.logit_bias:
            if isinstance(key, int) and not 0 <= key < self._model.facts.n_vocab:
                raise InvalidRequest(f"token {key} is not in the vocabulary", param="logit_bias")
            ids = self.tokens([Piece(key, parse_special=False)], "logit_bias", add_special=False)
            biases += [(token, bias) for token in ids]
        return Bias.of(biases)

    def breakers(self, sampling: Sampling) -> Breakers:
        """What interrupts a repetition, for DRY. InvalidRequest for too many."""
        texts = tuple(dict.fromkeys(text for text in sampling.dry_sequence_breakers if text))
        return self._breakers(texts) if sampling.dry_multiplier and texts else NO_BREAKERS

    def _find_breakers(self, texts: tuple[str, ...]) -> Breakers:
        if len(texts) > MAX_BREAKERS:
            raise InvalidRequest(f"at most {MAX_BREAKERS} texts are taken", param="dry_sequence_breakers")
        found = [self._breaks(text) for text in texts]
        if sum(map(len, found)) > MAX_BREAKS:
            raise InvalidRequest("they stand in too many tokens", param="dry_sequence_breakers")
        return Breakers.of(dict.fromkeys(each for breaks in found for each in breaks))

    @cached_property
    def _words(self) -> tuple[bytes, ...]:
        """The bytes of every token, by id."""
        return tuple(self._model.token_bytes(token, special=True) for token in range(self._model.facts.n_vocab))

    @cached_property
    def _by_last_byte(self) -> dict[bytes, list[tuple[int, bytes]]]:
        """The same, with their ids, by what they end in."""
        found: defaultdict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        for token, word in enumerate(self._words):
            found[word[-1:]].append((token, word))
        return found

    def _find_breaks(self, text: str) -> tuple[tuple[int, ...], ...]:
        """Each way to write a text from some token on: the tokens that have it in them, and those that end in its
        beginning, each followed by the tokens of the rest. The rule is llama.cpp's."""
        sought = text.encode()[:MAX_BREAKER_BYTES]
        found: list[tuple[int, ...]] = [(token,) for token, word in enumerate(self._words) if sought in word]
        for n in range(1, len(sought)):
            beginning, rest = sought[:n], sought[n:].decode("utf-8", "ignore")
            heads = self._by_last_byte.get(beginning[-1:], ())
            tail = self._model.tokenize(rest, add_special=False, parse_special=False)[:MAX_BREAKER_TAIL]
            found += [(head, *tail) for head, word in heads if word.endswith(beginning) and sought not in word]
        return tuple(found)

    def _size(self, piece: Piece) -> int:
        """In characters: of a token, those that it may stand for."""
        return len(piece.content) if isinstance(piece.content, str) else self._longest
