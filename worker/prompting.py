"""From what a request asks about to the tokens of its prompts: each fits, or is cut to fit, or the request is refused.

Megabytes that cannot fit are refused, or cut in the middle, before they are tokenized. Knows no jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import InvalidRequest, PromptTooLong
from shared.jobs import Chat, Completion, Generation, Infill, Prompt, Truncation
from worker.chat import Template
from worker.engine import ImageRows, Model, Placed
from worker.engine.overflow import truncated
from worker.infill import InfillPrompter
from worker.pictures import Pictures
from worker.rules import Rules
from worker.vocabulary import Piece, Vocabulary, pieces_of, split

SEAM = 2
"""Tokens that may not be those of the whole text where it was cut before tokenizing: truncation takes them out."""


class Prompted(NamedTuple):
    tokens: tuple[int, ...]
    is_truncated: bool = False
    images: tuple[Placed, ...] = ()

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


class Prompter:
    """Thread-safe: model and template are only read."""

    def __init__(self, model: Model, vocabulary: Vocabulary, template: Template, rules: Rules) -> None:
        facts = model.facts
        self._control_texts = model.control_texts
        self._vocabulary = vocabulary
        self._template = template
        self._n_ctx = rules.n_ctx
        self._adds_bos = facts.adds_bos
        self._bos_text = facts.bos_token if facts.adds_bos else ""
        self._infill = InfillPrompter(vocabulary, facts.fill, rules, bos=facts.bos if facts.adds_bos else None)

    def system(self, prompt: Prompt) -> tuple[int, ...]:
        """What stands before each prompt, as tokens that nothing takes away. PromptTooLong, InvalidRequest."""
        if not prompt:
            return ()
        pieces = pieces_of(prompt)
        self._check_fits(self._vocabulary.n_least(pieces), "at least ")
        tokens = self._vocabulary.tokens(pieces, "system_prompt", add_special=True)
        self._check_fits(len(tokens))
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
        if pictures is not None:
            return self._illustrated(each, pictures)
        return [self._fitted(source, request) for source in each]

    def _chat(self, request: Chat) -> _Source:
        """The rendered messages. Control tokens count only where the template wrote them, never in a content."""
        contents = [message.get("content") or "" for message in request.messages]
        if request.truncate is None:
            # A template writes something for each message, which may cost it more than tokenizing costs us.
            self._check_fits(max(len(contents), self._vocabulary.n_least(map(Piece, contents))), "at least ")
        text = self._template.render(request)
        # A template may write the BOS itself; llama.cpp would add a second one.
        add_special = not (self._bos_text and text.startswith(self._bos_text))
        pieces = [Piece(text)]
        # Tokenized in one piece wherever possible: cutting at the contents' edges changes how words merge there.
        if any(control in content for content in contents for control in self._control_texts):
            stretches = self._template.stretches(request)
            if stretches is None:
                raise InvalidRequest("a message contains a control token of the model", param="messages")
            pieces = [Piece(stretch.text, parse_special=not stretch.is_user) for stretch in stretches]
        return _Source((), pieces, "messages", add_special=add_special)

    def _fitted(self, source: _Source, request: Generation) -> Prompted:
        before, pieces, field, add_special = source
        rule = request.truncate
        if rule is None:
            self._check_fits(len(before) + self._vocabulary.n_least(pieces), "at least ")
            tokens = before + self._vocabulary.tokens(pieces, field, add_special=add_special)
            self._check_fits(len(tokens))
            return Prompted(tokens)
        n_head = self._n_ctx if request.n_keep < 0 else min(request.n_keep + self._adds_bos, self._n_ctx)
        ends = self._vocabulary.ends(pieces, n_head + SEAM, self._n_ctx + SEAM)
        tokens = before + self._vocabulary.tokens(ends, field, add_special=add_special)
        # The rule of blocks leaves room for an answer, the other leaves none.
        n_room = self._n_ctx if rule is Truncation.BLOCKS else self._n_ctx - 1
        kept = truncated(tokens, n_room, request.n_keep, rule, adds_bos=self._adds_bos)
        return Prompted(kept, is_truncated=len(kept) < len(tokens))

    def _illustrated(self, sources: list[_Source], pictures: Pictures) -> list[Prompted]:
        """With images in place of their marks. Such a prompt is never cut to fit: half an image is none."""
        runs = [split(source.pieces, pictures.mark) for source in sources]
        n_places = sum(len(run) - 1 for run in runs)
        if n_places != pictures.n_left:
            raise InvalidRequest(
                f"the prompt has room for {n_places} of {pictures.n_left} images:"
                " the model's chat template leaves a message out, or writes one twice",
                param=sources[0].field,
            )
        texts = [self._texts(source, run) for source, run in zip(sources, runs, strict=True)]
        return [self._with_images(each, pictures) for each in texts]

    def _texts(self, source: _Source, runs: list[list[Piece]]) -> list[tuple[int, ...]]:
        """The tokens before each image of a prompt, and those behind the last."""
        self._check_fits(len(source.before) + sum(map(self._vocabulary.n_least, runs)), "at least ")
        texts = [
            self._vocabulary.tokens(run, source.field, add_special=source.add_special and at == 0)
            for at, run in enumerate(runs)
        ]
        return [source.before + texts[0], *texts[1:]]

    def _with_images(self, texts: list[tuple[int, ...]], pictures: Pictures) -> Prompted:
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
        self._check_fits(len(tokens))
        return Prompted(tuple(tokens), images=tuple(images))

    def _check_fits(self, n_tokens: int, about: str = "") -> None:
        if n_tokens >= self._n_ctx:
            raise PromptTooLong(
                f"the request has {about}{n_tokens} prompt tokens"
                f" and exceeds the available context size of {self._n_ctx}",
                n_prompt_tokens=n_tokens,
                n_ctx=self._n_ctx,
            )
