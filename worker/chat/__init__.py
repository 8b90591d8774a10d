"""Chats: messages to prompt text with the template of a model, and how what the model says to it is to be read.

A template is not told about, it is tried: with words that nobody can guess it shows how it writes tools, calls and
reasoning. Knows no tokens and no engine.
"""

from worker.chat.choice import TemplateChoice, template_of
from worker.chat.dialect import Dialect, SpokenChat
from worker.chat.template import CHATML, BuiltinTemplate, ChatTemplate, Stretch, Template

__all__ = [
    "CHATML",
    "BuiltinTemplate",
    "ChatTemplate",
    "Dialect",
    "SpokenChat",
    "Stretch",
    "Template",
    "TemplateChoice",
    "template_of",
]
