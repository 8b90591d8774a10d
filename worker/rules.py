"""What a worker allows, and what it adds to a request that does not say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from shared.jobs import Completion, Generation, Prompt
from shared.settings import ConfigError, WorkerSettings
from worker.engine import Engine, InputRules
from worker.engine.overflow import n_ctx_of


class SystemPrompt(NamedTuple):
    """What stands before every completion's prompt."""

    prompt: Prompt = ""
    anti_prompt: str = ""
    """The name of who speaks next: a stop string."""

    @classmethod
    def read(cls, path: Path | None) -> SystemPrompt:
        """From a file with text, or with the object that llama.cpp's server of May 2024 took: `prompt`, `anti_prompt`,
        `assistant_name` (which it only repeated). Empty without a file. ConfigError when it cannot be read."""
        if path is None:
            return cls()
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--system-prompt-file: cannot read {path}: {(error.strerror or str(error)).lower()}"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"the system prompt {path} is not UTF-8") from None
        try:
            fields = json.loads(text)
        except ValueError:
            return cls(text)
        if not isinstance(fields, dict):
            return cls(text)
        prompt, anti_prompt = fields.get("prompt", ""), fields.get("anti_prompt", "")
        if not isinstance(prompt, str) or not isinstance(anti_prompt, str):
            raise ConfigError(f"{path}: prompt and anti_prompt must be strings")
        return cls(prompt, anti_prompt)


@dataclass(frozen=True, slots=True)
class Rules:
    n_ctx: int
    """Longest sequence, in tokens: a prompt must be shorter."""
    inputs: InputRules = field(default_factory=InputRules)
    """Of embeddings and of reranking."""
    can_generate: bool = True
    n_batch: int = 2048
    """Tokens of an infill's two sides together."""
    n_predict: int = -1
    """Tokens of a request that sets no limit; -1 to the end of the context."""
    n_predict_max: int = -1
    """Tokens of any request; -1 for no limit."""
    system_prompt: SystemPrompt = field(default_factory=SystemPrompt)
    is_suffix_first: bool = False
    """The order in which the model was taught to see the sides of an infill."""
    n_slots: int = 1

    @classmethod
    def of(cls, settings: WorkerSettings, system_prompt: SystemPrompt, engine: Engine) -> Self:
        return cls(
            n_ctx=engine.n_ctx_slot,
            inputs=engine.input_rules,
            can_generate=engine.can_generate,
            n_batch=settings.batch_size,
            n_predict=settings.n_predict,
            n_predict_max=settings.n_predict_max,
            system_prompt=system_prompt,
            is_suffix_first=settings.spm_infill,
            n_slots=settings.parallel,
        )

    def n_ctx_of(self, request: Generation) -> int:
        """The longest sequence of a request, which may want less than there is."""
        return n_ctx_of(request, self.n_ctx)

    def system_of(self, request: Generation) -> SystemPrompt:
        """A completion's own, or else the worker's. Others have none."""
        if not isinstance(request, Completion):
            return SystemPrompt()
        return self.system_prompt if request.system_prompt is None else SystemPrompt(request.system_prompt)

    def slot_of(self, request: Generation, index: int) -> int | None:
        """The slot that a sequence must run in; None for any. Only the first of a request is bound to the one that is
        named: the others need not wait for each other, and what they have in common is computed once in any slot."""
        return request.id_slot % self.n_slots if request.id_slot >= 0 and index == 0 else None

    def limit(self, request: Generation) -> int:
        """Tokens that the request gets at most; -1 to the end of the context."""
        is_own = request.n_predict >= 0 and not request.is_capped
        bounds = (request.n_predict, self.n_predict_max, -1 if is_own else self.n_predict)
        return min((n for n in bounds if n >= 0), default=-1)
