"""The jobs of ollama's requests. Whether the model can do what they ask, its card and its worker know."""

from __future__ import annotations

from functools import partial
from typing import Any

from api.schemas.ask import Ask, Origin
from api.schemas.ollama.fields import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody, TextBody
from api.schemas.ollama.messages import illustrated, messages_of
from api.schemas.ollama.replies import Form, ReplyShape, Wire, as_message, as_response, embed_json, embeddings_json
from api.schemas.pictures import Album
from api.schemas.prompts import inputs_of
from api.schemas.strict import bad_field, read
from api.schemas.tools import tools_of
from api.schemas.whole import WholeShape
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Chat, Completion, Embedding, Infill, ToolUse, Truncation


def generate(fields: GenerateBody, wire: Wire = Wire.LINES) -> Ask:
    """A chat of one message, unless the prompt is meant as it is, or something is to stand behind the text. Raises
    InvalidRequest or NotSupported."""
    _check_template(fields)
    if fields.is_load:
        raise bad_field("prompt", "is needed")
    album = Album()
    prompt = illustrated(fields.prompt, fields.images, "images", album)
    request: Chat | Completion | Infill
    if fields.suffix:
        if fields.images:
            raise bad_field("images", "cannot be used together with 'suffix'")
        # It makes itself fit, by leaving out what is farthest from the gap.
        request = Infill(prefix=prompt, suffix=fields.suffix, **_generation(fields, None))
    elif fields.raw:
        request = Completion(prompts=(prompt,), system_prompt="", **_generation(fields, Truncation.TAIL))
    else:
        system = [{"role": "system", "content": fields.system}] if fields.system else []
        request = Chat(
            messages=(*system, {"role": "user", "content": prompt}),
            template_kwargs=fields.template_kwargs,
            **_generation(fields, Truncation.TAIL),
        )
    return _ask(fields, request, as_response, wire, album)


def chat(fields: ChatBody, wire: Wire = Wire.LINES) -> Ask:
    """Raises InvalidRequest or NotSupported."""
    if fields.is_load:
        raise bad_field("messages", "is needed")
    album = Album()
    tools = tools_of(fields.tools)
    request = Chat(
        messages=messages_of(fields.messages, album),
        template_kwargs=fields.template_kwargs,
        tool_use=ToolUse(tools=tools) if tools else None,
        **_generation(fields, Truncation.MESSAGES),
    )
    return _ask(fields, request, as_message, wire, album)


def embed(fields: EmbedBody) -> Ask:
    """Vectors of length 1. Raises InvalidRequest."""
    return Ask(
        request=Embedding(inputs=inputs_of("input", list(fields.inputs)), is_pooled=True, truncates=fields.truncate),
        shape=lambda origin: WholeShape(partial(embed_json, model=fields.model or origin.model)),
        model=fields.model,
        lane=fields.lane,
    )


def embeddings(fields: EmbeddingsBody) -> Ask:
    """One vector, of the length that the model gave it. Raises InvalidRequest."""
    return Ask(
        request=Embedding(inputs=inputs_of("prompt", fields.prompt), norm=-1, is_pooled=True, truncates=True),
        shape=lambda _: WholeShape(embeddings_json),
        model=fields.model,
        lane=fields.lane,
    )


def generate_whole(body: dict[str, Any]) -> Ask:
    """For a job, whose answer comes whole: ollama streams where a client says nothing. Raises the same."""
    return generate(read(GenerateBody, _not_streamed(body)))


def chat_whole(body: dict[str, Any]) -> Ask:
    return chat(read(ChatBody, _not_streamed(body)))


def _not_streamed(body: dict[str, Any]) -> dict[str, Any]:
    return body if body.get("stream") is not None else {**body, "stream": False}


def _check_template(fields: GenerateBody) -> None:
    if fields.raw and (fields.template or fields.system or fields.context):
        raise InvalidRequest("raw mode does not support template, system, or context")
    if fields.template:
        raise NotSupported(
            "Field 'template': this build renders with the model's own; 'raw' takes a prompt as it is", param="template"
        )
    if fields.context:
        raise NotSupported(
            "Field 'context': this build neither gives nor takes one; /api/chat takes what was said before",
            param="context",
        )


def _generation(fields: TextBody, truncation: Truncation | None) -> dict[str, Any]:
    return {
        "constraint": fields.constraint,
        "truncate": truncation if fields.truncate else None,
        "shift": fields.shift,
        "has_logprobs": fields.logprobs,
        "n_probs": fields.top_logprobs if fields.logprobs else 0,
        **fields.options.generation(),
    }


def _ask(fields: TextBody, request: Chat | Completion | Infill, form: Form, wire: Wire, album: Album) -> Ask:
    def shape(origin: Origin) -> ReplyShape:
        return ReplyShape(origin, form, model=fields.model, wire=wire, splits_thinking=fields.think is not False)

    return Ask(request=request, shape=shape, model=fields.model, lane=fields.lane, is_stream=fields.stream, album=album)
