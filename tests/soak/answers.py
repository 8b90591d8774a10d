"""What is wrong with an answer, seen beside what was asked. Pure; an answer that is right yields nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from tests.soak.errands import Errand, Way

N_EMBD = 64
"""Of the tiny model."""


def faults_of(errand: Errand, said: Any) -> list[str]:
    """`said`: the JSON of a plain answer with status 200, or the result of a job."""
    assert isinstance(errand.body, dict)
    match errand.path:
        case "/completion":
            return [fault for one in _each(said) for fault in _of_completion(errand.body, one)] + _of_count(
                errand.body, said
            )
        case "/v1/chat/completions":
            return list(_of_chat(errand.body, said))
        case "/v1/embeddings":
            return list(_of_embeddings(errand.body, said))
    return []


def faults_of_stream(errand: Errand, events: list[dict[str, Any]], is_done: bool) -> list[str]:
    """`events`: the objects of a stream; `is_done`: whether `[DONE]` was the last word."""
    if any("error" in event for event in events):
        return [f"the stream failed: {events[-1]}"]
    if errand.path != "/completion":
        return [] if is_done else ["no [DONE]"]
    *chunks, last = events
    if not last["stop"] or any(chunk["stop"] for chunk in chunks):
        return ["the last event is not the last"]
    assert isinstance(errand.body, dict)
    text = "".join(chunk["content"] for chunk in chunks)
    told = [entry for chunk in chunks for entry in chunk.get("completion_probabilities", ())]
    whole = last | {"content": text, **({"completion_probabilities": told} if told else {})}
    return list(_of_completion(errand.body, whole))


def _each(said: Any) -> list[dict[str, Any]]:
    return said if isinstance(said, list) else [said]


def _of_count(body: dict[str, Any], said: Any) -> list[str]:
    n_prompts = len(body["prompt"]) if isinstance(body["prompt"][0], list) else 1
    indices = [one["index"] for one in _each(said)]
    return [] if indices == list(range(n_prompts * body.get("n", 1))) else [f"the indices are {indices}"]


def _of_completion(body: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    text, predicted, timings = said["content"], said["tokens_predicted"], said["timings"]
    if predicted > body["n_predict"]:
        yield f"{predicted} tokens of {body['n_predict']}"
    if timings["cache_n"] + timings["prompt_n"] != said["tokens_evaluated"]:
        yield f"the prompt of {said['tokens_evaluated']} is {timings['cache_n']} + {timings['prompt_n']}"
    if not all(math.isfinite(value) and value >= 0 for value in timings.values()):
        yield f"timings {timings}"
    if any(stop and stop in text for stop in body.get("stop", ())):
        yield "a stop string is in the text"
    may_end_early = "grammar" in body or "json_schema" in body or said["truncated"] or said["stop_type"] == "word"
    if body.get("ignore_eos") and predicted < body["n_predict"] and not may_end_early:
        yield f"it ended by {said['stop_type']} after {predicted} of {body['n_predict']} tokens"
    if body.get("shift") and predicted != body["n_predict"]:
        yield f"a shifted text has {predicted} tokens of {body['n_predict']}"
    if "grammar" in body:
        yield from _of_forced(json.loads(body["grammar"].removeprefix("root ::= ")), said)
    if "json_schema" in body and said["stop_type"] == "eos":
        value = json.loads(text)
        if set(value) != {"a", "b"} or not 0 <= value["a"] <= 99 or value["b"] not in ("x", "日本", None):
            yield f"{text!r} does not keep its schema"
    if "n_probs" in body:
        yield from _of_likelihoods(body, said)


def _of_forced(wanted: str, said: dict[str, Any]) -> Iterator[str]:
    text = said["content"].rstrip("\ufffd")
    if said["stop_type"] == "eos" and text != wanted:
        yield f"{text!r} instead of {wanted!r}"
    if not wanted.startswith(text):
        yield f"{text!r} does not begin {wanted!r}"


def _of_likelihoods(body: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    told = said.get("completion_probabilities", [])
    if len(told) != said["tokens_predicted"]:
        yield f"{len(told)} likelihoods of {said['tokens_predicted']} tokens"
    name, list_name = ("prob", "top_probs") if body.get("post_sampling_probs") else ("logprob", "top_logprobs")
    for entry in told:
        tops = [top[name] for top in entry[list_name]]
        if len(tops) > body["n_probs"] or tops != sorted(tops, reverse=True) or not all(map(math.isfinite, tops)):
            yield f"likelihoods {tops}"


def _of_chat(body: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    (choice,) = said["choices"]
    usage = said["usage"]
    if usage["completion_tokens"] > body["max_tokens"]:
        yield f"{usage['completion_tokens']} tokens of {body['max_tokens']}"
    if choice["finish_reason"] not in ("stop", "length"):
        yield f"it ended by {choice['finish_reason']}"
    if not isinstance(choice["message"]["content"], str):
        yield "no text"
    if body.get("logprobs") and not choice["logprobs"]["content"]:
        yield "no likelihoods"


def _of_embeddings(body: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    if [item["index"] for item in said["data"]] != list(range(len(body["input"]))):
        yield "vectors are missing or out of order"
    for item in said["data"]:
        length = math.hypot(*item["embedding"])
        if len(item["embedding"]) != N_EMBD or abs(length - 1) > 1e-3:
            yield f"a vector of {len(item['embedding'])} numbers has the length {length}"


def faults_of_job(errand: Errand, tokens: list[tuple[int, str]], job: dict[str, Any]) -> list[str]:
    """`tokens`: what its events said, each with its number; `job`: as it stands at its end."""
    assert errand.way is Way.JOB
    faults = []
    if [number for number, _ in tokens] != list(range(1, len(tokens) + 1)):
        faults.append("an event was lost or came twice")
    if job["status"] not in errand.endings:
        faults.append(f"it ended as {job['status']}: {job.get('error')}")
    if job["status"] == "succeeded":
        if "".join(text for _, text in tokens) != job["result"]["content"]:
            faults.append("its events say something else than its result")
        faults += faults_of(errand, job["result"])
    return faults
