"""Between which marks a template's model thinks aloud, and whether a prompt has opened them."""

from __future__ import annotations

import re
from typing import NamedTuple

from worker.chat.marks import FIRST_MARK, LAST_MARK, common_beginning
from worker.chat.probe import Probe, word
from worker.chat.template import Template

KNOWN = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Of models whose templates only take reasoning away, or only open it."""


class Marks(NamedTuple):
    """What opens and what closes reasoning."""

    opening: str
    closing: str

    def are_open(self, prompt: str) -> bool:
        """Whether what comes behind the prompt is reasoning."""
        return prompt.rstrip().endswith(self.opening)


def learn_reasoning(template: Template) -> Marks | None:
    """From what the template makes of an answer with reasoning; else what its source has in it. None for a model that
    does not think aloud."""
    if (marks := _learned(Probe(template))) is not None:
        return marks
    return next((Marks(*pair) for pair in KNOWN if pair[1] in template.source), None)


def _learned(probe: Probe) -> Marks | None:
    reasoning, content = word(), word()
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "thinking": reasoning}
    before, found, behind = probe.text(message).partition(reasoning)
    between, answered, _ = behind.partition(content)
    if not found or not answered:
        return None
    opened = probe.text(adds_prompt=True)
    header = common_beginning(before, opened)
    opening = before[len(header) :].strip() or _found(LAST_MARK.search(before))
    # A turn that is closed and opened again to answer is all one mark; else what is behind the first is the answer's.
    turn = _found(FIRST_MARK.search(opened.rpartition(probe.user["content"])[2]))
    closing = between.strip() if turn and between.count(turn) else _found(FIRST_MARK.match(between))
    return Marks(opening, closing) if opening and closing else None


def _found(match: re.Match[str] | None) -> str:
    return match[0].strip() if match else ""
