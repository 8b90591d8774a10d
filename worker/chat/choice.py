"""Which template a worker renders with: the one that its operator names, or the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from shared.settings import ConfigError, WorkerSettings
from worker.chat.template import BuiltinTemplate, ChatTemplate, Template, TemplatePair
from worker.engine import ModelFacts, builtin_templates


def template_of(facts: ModelFacts) -> Template:
    """The model's own, which may have another for chats with tools. ValueError when one is no template."""
    plain = ChatTemplate(facts.chat_template, bos_token=facts.bos_token, eos_token=facts.eos_token)
    if not facts.tool_template:
        return plain
    return TemplatePair(plain, ChatTemplate(facts.tool_template, bos_token=facts.bos_token, eos_token=facts.eos_token))


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """What the settings say of the template; nothing, to take the model's own."""

    text: str = ""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """ConfigError when it cannot be read, or is no template."""
        flag, path = "--chat-template", settings.chat_template_file
        text = settings.chat_template
        if path is not None:
            flag = "--chat-template-file"
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{flag}: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
            except UnicodeDecodeError:
                raise ConfigError(f"{flag}: {path} is not UTF-8") from None
        choice = cls(text)
        if text and not (choice.is_builtin or "{{" in text or "{%" in text):
            raise ConfigError(f"{flag}: {text[:40]!r} is neither Jinja nor one of {', '.join(builtin_templates())}")
        try:
            choice.open()
        except ValueError as error:
            raise ConfigError(f"{flag}: {error}") from None
        return choice

    @property
    def is_builtin(self) -> bool:
        return self.text in builtin_templates()

    def open(self, bos_token: str = "", eos_token: str = "") -> Template | None:
        """For a model with these tokens; None for its own. ValueError when it is no template."""
        if self.is_builtin:
            return BuiltinTemplate(self.text)
        return ChatTemplate(self.text, bos_token=bos_token, eos_token=eos_token) if self.text else None
