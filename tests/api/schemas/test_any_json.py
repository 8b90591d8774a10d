"""Whatever JSON stands in a field, it is read or refused: nothing else ever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas import of_2024
from api.schemas.adapters import AdapterListFields, adapters_of
from api.schemas.ask import Ask
from api.schemas.embeddings import embedding, embeddings
from api.schemas.llamacpp import completion
from api.schemas.ollama.fields import EmbedBody
from api.schemas.ollama.requests import chat_whole, embed, generate_whole
from api.schemas.openai import chat
from api.schemas.rerank import rerank
from api.schemas.strict import read
from api.schemas.vocabulary import apply_template
from shared.errors import Rejected

WORDS = (
    *("id", "data", "scale", "type", "text", "url", "image_url", "input_image", "content", "role", "user", "query"),
    *("prompt_string", "multimodal_data", "<__media__>", "[img-1]", "[img-99999999999]", "data:image/png;base64,AA"),
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
JSON = st.recursive(
    LEAVES | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


def _embed(fields: dict[str, Any]) -> Any:
    return embed(read(EmbedBody, fields))


def _adapters(fields: dict[str, Any]) -> Any:
    return adapters_of(read(AdapterListFields, fields["adapters"]).root)


READERS: list[tuple[Callable[[dict[str, Any]], Any], dict[str, Any], tuple[str, ...]]] = [
    (completion, {"prompt": "[img-1]"}, ("prompt", "image_data", "lora", "id_slot", "multimodal_data")),
    (chat, {"messages": [{"role": "user", "content": "x"}]}, ("messages", "lora", "id_slot", "image_data")),
    (apply_template, {}, ("messages",)),
    (embeddings, {"input": "x"}, ("input", "encoding_format", "dimensions", "embd_normalize")),
    (embedding, {"content": "x"}, ("input", "content")),
    (of_2024.completion, {"prompt": "x"}, ("prompt", "samplers", "truncate")),
    (of_2024.chat, {"messages": [{"role": "user", "content": "x"}]}, ("messages", "model")),
    (of_2024.embeddings, {}, ("content", "input")),
    (rerank, {"query": "q", "documents": ["x"]}, ("query", "documents", "texts", "top_n", "return_text")),
    (_adapters, {}, ("adapters",)),
    (generate_whole, {"prompt": "x"}, ("prompt", "suffix", "images", "options", "format", "keep_alive", "think")),
    (chat_whole, {"messages": [{"role": "user", "content": "x"}]}, ("messages", "tools", "options", "top_logprobs")),
    (_embed, {"input": "x"}, ("input", "dimensions", "truncate")),
]
CASES = [(reader, body, field) for reader, body, fields in READERS for field in fields]


@pytest.mark.parametrize(("reader", "body", "field"), CASES, ids=[f"{case[0].__name__}-{case[2]}" for case in CASES])
@settings(max_examples=15, deadline=None)
@given(value=JSON)
def test_any_value_of_a_field_is_read_or_refused(
    reader: Callable[[dict[str, Any]], Ask], body: dict[str, Any], field: str, value: Any
) -> None:
    try:
        reader(body | {field: value})
    except Rejected as error:
        assert error.message


def part(kind: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {
        "messages": [{"role": "user", "content": [{"type": kind, "image_url": value, "text": value}]}]
    }


@pytest.mark.parametrize("kind", ["text", "image_url", "input_image", "input_audio"])
@settings(max_examples=15, deadline=None)
@given(value=JSON)
def test_any_part_of_a_message_is_read_or_refused(kind: str, value: Any) -> None:
    try:
        chat(part(kind)(value))
    except Rejected as error:
        assert error.param
