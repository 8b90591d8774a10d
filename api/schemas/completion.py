"""What continues a prompt, native and OpenAI alike: the fields of both, and the one request that they become.

Knows no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from typing_extensions import TypedDict

from api.schemas.constraints import constraint_of
from api.schemas.generation import GenerationFields
from api.schemas.pictures import ImageDataFields, PromptPictures
from api.schemas.prompts import OnePrompt, Prompts, prompt_of, prompts_of
from api.schemas.strict import bad_field, by_hand
from shared.jobs import Completion, Prompt


class NamedPrompt(TypedDict, total=False):
    """The system prompt of 2024."""

    prompt: OnePrompt
    anti_prompt: str
    assistant_name: str


class SystemPrompt(NamedTuple):
    """What stands before each prompt, and the stop string that it brings with it, if any."""

    prompt: Prompt
    anti_prompt: str = ""


def _system_prompt(value: Any) -> SystemPrompt:
    """Text or tokens, or the object of 2024. How that calls the assistant is for clients to read, and changes nothing
    here."""
    if not isinstance(value, dict):
        return SystemPrompt(prompt_of("system_prompt", value))
    for name in ("anti_prompt", "assistant_name"):
        if not isinstance(value.get(name, ""), str):
            raise bad_field(f"system_prompt.{name}", "must be a string")
    return SystemPrompt(prompt_of("system_prompt.prompt", value.get("prompt", "")), value.get("anti_prompt", ""))


class PromptFields(ImageDataFields, GenerationFields):
    prompt: Annotated[Any, by_hand(Prompts)]
    system_prompt: Annotated[Any, by_hand(OnePrompt | NamedPrompt)] = None


def completion_of(typed: PromptFields, fields: Mapping[str, Any], pictures: PromptPictures) -> Completion:
    """`typed` is what was read of `fields`; `pictures` gets those of the prompts. Raises InvalidRequest or
    NotSupported."""
    prompts = prompts_of("prompt", typed.prompt, pictures)
    asked = typed.generation(len(prompts))
    if typed.system_prompt is not None:
        system = _system_prompt(typed.system_prompt)
        asked["system_prompt"] = system.prompt
        asked["stop"] += (system.anti_prompt,) if system.anti_prompt else ()
    return Completion(prompts=prompts, constraint=constraint_of(fields), **asked)
