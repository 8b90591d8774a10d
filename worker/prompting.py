"""From what a request asks about to the tokens of its prompts: each fits, or is cut to fit, or the request is refused.

Megabytes that cannot fit are refused, or cut in the middle, before they are tokenized. Knows no jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import InvalidRequest, PromptTooLong
from shared.events import ReplyForm
from shared.jobs import Chat, Completion, Generation, Infill, Prompt, Truncation
from worker.chat import Dialect
from worker.engine import ImageRows, Model, Placed
from worker.engine.overflow import truncated
from worker.infill import InfillPrompter
from worker.messages import ChatPrompter, Written
from worker.pictures import Pictures
from worker.rules import Rules
from worker.vocabulary import Piece, Vocabulary, pieces_of, split

SEAM = 2
"""Tokens that may not be those of the whole text where it was cut before tokenizing: truncation takes them out."""


class Prompted(NamedTuple):
    tokens: tuple[int, ...]
    is_truncated: bool = False
    images: tuple[Placed, ...] = ()
    reply: ReplyForm | None = None
    """How what is said to it is to be read, of a chat."""

    @property
    def text(self) -> tuple[int, ...]:
        """Without the images."""
        return tuple(token for token in self.tokens if token >= 0) if self.images else self.tokens


class _Source(NamedTuple):
    """What a prompt is made of: tokens, and behind them pieces that come from a field of the request."""

    before: tuple[int, ...]
    pieces: Sequence[Piece] = ()
    field: str = ""
    add_special: bool = False
    reply: ReplyForm | None = None
    is_cut: bool = False


class Prompter:
    """Thread-safe: model and template are only read."""

    def __init__(self, model: Model, vocabulary: Vocabulary, dialect: Dialect, rules: Rules) -> None:
        facts = model.facts
        self._vocabulary = vocabulary
        self._messages = ChatPrompter(model, vocabulary, dialect)
        self._rules = rules
        self._adds_bos = facts.adds_bos
        self._infill = InfillPrompter(vocabulary, facts.fill, rules, bos=facts.bos if facts.adds_bos else None)

    def system(self, prompt: Prompt) -> tuple[int, ...]:
        """What stands before each prompt, as tokens that nothing takes away. PromptTooLong, InvalidRequest."""
        if not prompt:
            return ()
        pieces = pieces_of(prompt)
        _check_fits(self._vocabulary.n_least(pieces), self._rules.n_ctx, "at least ")
        tokens = self._vocabulary.tokens(pieces, "system_prompt", add_special=True)
        _check_fits(len(tokens), self._rules.n_ctx)
        return tokens

    def prompts(
        self, request: Completion | Chat | Infill, system: tuple[int, ...] = (), pictures: Pictures | None = None
    ) -> list[Prompted]:
        """One for each prompt of the request, with `pictures` where their mark stands. Raises PromptTooLong,
        InvalidRequest, NotSupported; and what taking a picture raises."""
        match request:
            case Completion(prompts=prompts):
                each = [_Source(system, pieces_of(prompt), "prompt", add_special=not system) for prompt in prompts]
            case Chat():
                each = [self._chat(request)]
            case Infill():
                each = [_Source(self._infill.tokens(request))]
        n_ctx = self._rules.n_ctx_of(request)
        if pictures is not None:
            return self._illustrated(each, pictures, n_ctx)
        return [self._fitted(source, request, n_ctx) for source in each]

    def _chat(self, chat: Chat) -> _Source:
        """The rendered messages: all of them, or those that fit."""
        n_ctx = self._rules.n_ctx_of(chat)
        if chat.truncate is Truncation.MESSAGES and chat.media is None:
            written = self._messages.fitting(chat, lambda written: self._n_tokens(written) < n_ctx)
        else:
            if chat.truncate is None:
                _check_fits(self._messages.n_least(chat), n_ctx, "at least ")
            written = self._messages.written(chat)
        pieces, add_special, reply, is_cut = written
        return _Source((), pieces, "messages", add_special=add_special, reply=reply, is_cut=is_cut)

    def _fitted(self, source: _Source, request: Generation, n_ctx: int) -> Prompted:
        before, pieces, field, add_special, reply, is_cut = source
        rule = request.truncate
        if rule is None:
            _check_fits(len(before) + self._vocabulary.n_least(pieces), n_ctx, "at least ")
            tokens = before + self._vocabulary.tokens(pieces, field, add_special=add_special)
            _check_fits(len(tokens), n_ctx)
            return Prompted(tokens, reply=reply)
        n_head = n_ctx if request.n_keep < 0 else min(request.n_keep + self._adds_bos, n_ctx)
        ends = self._vocabulary.ends(pieces, n_head + SEAM, n_ctx + SEAM)
        tokens = before + self._vocabulary.tokens(ends, field, add_special=add_special)
        # The rule of blocks leaves room for an answer, the others leave none.
        n_room = n_ctx if rule is Truncation.BLOCKS else n_ctx - 1
        kept = truncated(tokens, n_room, request.n_keep, rule, adds_bos=self._adds_bos)
        return Prompted(kept, is_truncated=is_cut or len(kept) < len(tokens), reply=reply)

    def _illustrated(self, sources: list[_Source], pictures: Pictures, n_ctx: int) -> list[Prompted]:
        """With images in place of their marks. Such a prompt is never cut to fit: half an image is none."""
        runs = [split(source.pieces, pictures.mark) for source in sources]
        n_places = sum(len(run) - 1 for run in runs)
        if n_places != pictures.n_left:
            raise InvalidRequest(
                f"the prompt has room for {n_places} of {pictures.n_left} images:"
                " the model's chat template leaves a message out, or writes one twice",
                param=sources[0].field,
            )
        texts = [self._texts(source, run, n_ctx) for source, run in zip(sources, runs, strict=True)]
        return [
            self._with_images(each, pictures, n_ctx)._replace(reply=source.reply)
            for source, each in zip(sources, texts, strict=True)
        ]

    def _texts(self, source: _Source, runs: list[list[Piece]], n_ctx: int) -> list[tuple[int, ...]]:
        """The tokens before each image of a prompt, and those behind the last."""
        _check_fits(len(source.before) + sum(map(self._vocabulary.n_least, runs)), n_ctx, "at least ")
        texts = [
            self._vocabulary.tokens(run, source.field, add_special=source.add_special and at == 0)
            for at, run in enumerate(runs)
        ]
        return [source.before + texts[0], *texts[1:]]

    def _with_images(self, texts: list[tuple[int, ...]], pictures: Pictures, n_ctx: int) -> Prompted:
        tokens = list(texts[0])
        images: list[Placed] = []
        n_text_left = sum(map(len, texts[1:]))
        for text in texts[1:]:
            for part in pictures.take(len(tokens) + n_text_left).parts:
                if isinstance(part, ImageRows):
                    images.append(Placed(len(tokens), part))
                    tokens += (part.id,) * len(part)
                else:
                    tokens += part
            tokens += text
            n_text_left -= len(text)
        _check_fits(len(tokens), n_ctx)
        return Prompted(tuple(tokens), images=tuple(images))

    def _n_tokens(self, written: Written) -> int:
        return len(self._vocabulary.tokens(written.pieces, "messages", add_special=written.add_special))


def _check_fits(n_tokens: int, n_ctx: int, about: str = "") -> None:
    if n_tokens >= n_ctx:
        raise PromptTooLong(
            f"the request has {about}{n_tokens} prompt tokens and exceeds the available context size of {n_ctx}",
            n_prompt_tokens=n_tokens,
            n_ctx=n_ctx,
        )
