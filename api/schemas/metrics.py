"""Metrics as Prometheus reads them, llama.cpp's under its names: https://prometheus.io/docs/instrumenting/exposition_formats.

llama.cpp's have no labels, also where several models are served, so that dashboards made for it go on working. Written
by hand: prometheus-client can only write counters whose names end in `_total`, and one of llama.cpp's does not.
Pure: knows no workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shared.bus import Recent
from shared.work import Work

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one model, and what waits for them."""

    model: str
    n_workers: int = 0
    n_busy_slots: int = 0
    n_idle_slots: int = 0
    n_parked: int = 0
    n_held: int = 0
    """Taken on by workers, and not started yet."""
    n_cells: int = 0
    n_cells_used: int = 0
    recent: Sequence[Recent] = ()
    queued: Mapping[str, int] = field(default_factory=dict)
    """Jobs by the line in which they wait."""
    done: Work = field(default_factory=Work)


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = {}


class Family(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Sequence[Sample]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for sample in self.samples:
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
            yield f"{self.name}{{{labels}}} {sample.value}" if labels else f"{self.name} {sample.value}"


def metrics_text(crews: Sequence[Crew]) -> str:
    return "".join(f"{line}\n" for family in (*_llamacpp(crews), *_own(crews)) for line in family.lines())


def _llamacpp(crews: Sequence[Crew]) -> Iterator[Family]:
    """Those of its server, and two that it had in 2024. Nothing is drafted here, so what counts drafts stays 0."""
    done = sum((crew.done for crew in crews), Work())
    recent = [each for crew in crews for each in crew.recent]
    n_cells, n_used = sum(crew.n_cells for crew in crews), sum(crew.n_cells_used for crew in crews)
    n_waiting = sum(sum(crew.queued.values()) + crew.n_held for crew in crews)

    def counter(name: str, text: str, value: float) -> Family:
        return Family(f"llamacpp:{name}", "counter", text, [Sample(value)])

    def gauge(name: str, text: str, value: float) -> Family:
        return Family(f"llamacpp:{name}", "gauge", text, [Sample(value)])

    yield counter(
        "prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", done.n_prompt_tokens
    )
    yield counter(
        "prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", done.n_prompt_tokens_cached
    )
    yield counter("prompt_seconds_total", "Total time spent processing prompts", done.prompt_s)
    yield counter("tokens_predicted_total", "Number of generation tokens processed", done.n_predicted_tokens)
    yield counter("tokens_predicted_seconds_total", "Total time spent generating tokens", done.predicted_s)
    yield counter(
        "n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
        done.n_decodes,
    )
    yield counter("n_tokens_max", "Largest observed sequence length (prompt + generation)", done.n_tokens_most)
    yield counter("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", 0)
    yield counter(
        "spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model", 0
    )
    yield counter("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", 0)
    yield gauge(
        "prompt_tokens_seconds",
        "Average prompt throughput in tokens/s",
        _ratio(sum(each.prompt_tokens for each in recent), sum(each.prompt_s for each in recent)),
    )
    yield gauge(
        "predicted_tokens_seconds",
        "Average generation throughput in tokens/s",
        _ratio(sum(each.predicted_tokens for each in recent), sum(each.predicted_s for each in recent)),
    )
    yield gauge("requests_processing", "Number of requests processing", sum(crew.n_busy_slots for crew in crews))
    yield gauge("requests_deferred", "Number of requests deferred", n_waiting)
    yield gauge(
        "n_busy_slots_per_decode",
        "Average number of busy slots per llama_decode() call",
        _ratio(done.n_busy_slots, done.n_decodes),
    )
    yield gauge("kv_cache_usage_ratio", "KV-cache usage. 1 means 100 percent usage.", _ratio(n_used, n_cells))
    yield gauge("kv_cache_tokens", "KV-cache tokens.", n_used)


def _own(crews: Sequence[Crew]) -> Iterator[Family]:
    """By model, what llama.cpp has no names for."""

    def samples(values: Iterable[tuple[Crew, float]]) -> list[Sample]:
        return [Sample(value, {"model": crew.model}) for crew, value in values]

    yield Family(
        "slotstream_workers",
        "gauge",
        "Workers that have loaded their model",
        samples((crew, crew.n_workers) for crew in crews),
    )
    yield Family(
        "slotstream_slots",
        "gauge",
        "Slots of these workers by what they do",
        [
            Sample(n_slots, {"model": crew.model, "state": state})
            for crew in crews
            for state, n_slots in (("busy", crew.n_busy_slots), ("idle", crew.n_idle_slots))
        ],
    )
    yield Family(
        "slotstream_jobs_queued",
        "gauge",
        "Jobs that no worker has taken yet by the line in which they wait",
        [Sample(n_jobs, {"model": crew.model, "line": line}) for crew in crews for line, n_jobs in crew.queued.items()],
    )
    yield Family(
        "slotstream_sequences_parked",
        "gauge",
        "Sequences that gave their slot or their cells to others and wait to go on",
        samples((crew, crew.n_parked) for crew in crews),
    )
    yield Family(
        "slotstream_sequences_begun_total",
        "counter",
        "Sequences that came to their first token",
        samples((crew, crew.done.n_begun) for crew in crews),
    )
    yield Family(
        "slotstream_queue_seconds_total",
        "counter",
        "Time that these had waited for their slots",
        samples((crew, crew.done.queue_s) for crew in crews),
    )


def _ratio(part: float, whole: float) -> float:
    """0 of nothing, where a quotient would be no number."""
    return part / whole if whole > 0 else 0


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
