"""What becomes of a batch, from its making to its files."""

from __future__ import annotations

import json

from shared.batches import BatchStatus, Usage, output_file_id
from tests.api.tasks.batches.conftest import Bench, line, names, say


async def test_each_line_is_answered_as_its_path_would_have_answered_it(bench: Bench) -> None:
    lines = [
        say("native", "say one|two"),
        line("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "say hé|😀"}]),
        line("response", "/v1/responses", input="say x"),
        line("vectors", "/v1/embeddings", input=["a", "b"], encoding_format="base64"),
        line("ranks", "/v1/rerank", query="abc", documents=["ab", "zz"]),
        line("ollama", "/api/generate", model="tiny", prompt="say o"),
        line("choices", "/v1/completions", prompt=["say p", "say q"], n=2),
    ]
    batch_id = await bench.made(lines)
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 7, 7, 0)
    outputs, errors = await bench.records(batch_id)
    assert (names(outputs), errors) == (names(lines), [])
    bodies = {record["custom_id"]: record["response"]["body"] for record in outputs}
    assert bodies["native"]["content"] == "onetwo"
    assert bodies["chat"]["choices"][0]["message"]["content"] == "hé😀"
    assert bodies["response"]["output"][0]["content"][0]["text"] == "x"
    assert [len(entry["embedding"]) for entry in bodies["vectors"]["data"]] == [24, 24]
    assert bodies["ranks"]["results"][0]["index"] == 0
    assert bodies["ollama"]["response"] == "o"
    assert [choice["text"] for choice in bodies["choices"]["choices"]] == ["p", "p'", "q", "q'"]
    for record in outputs:
        assert record["error"] is None
        assert record["response"]["status_code"] == 200
        assert record["response"]["request_id"].startswith("job_")
        assert record["id"] == "batch_req_" + record["response"]["request_id"].rpartition("_")[2]
    # Each of six prompts has 7 tokens, of which 3 were in a cache; inputs and documents have as many as letters.
    assert batch.usage == Usage(input_tokens=6 * 7 + 2 + 4, cached_tokens=6 * 3, output_tokens=2 + 4 + 1 + 1 + 4)


async def test_a_batch_that_is_over_has_its_file_and_its_times_in_order(bench: Bench) -> None:
    batch_id = await bench.made([say("a"), say("b")], metadata={"k": "v"})
    batch = await bench.ended(batch_id)
    assert (batch.output_file_id, batch.error_file_id) == (output_file_id(batch_id), None)
    file = await bench.bus.files.record(output_file_id(batch_id), "default")
    assert file is not None
    content = b"".join([part for piece in file.pieces async for part in bench.store.read(piece.name)])
    assert names([json.loads(text) for text in content.splitlines()]) == ["a", "b"]
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(time for time in times if time is not None)
    assert [row.id for row in await bench.bus.outbox.read()] == [batch_id]
