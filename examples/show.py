"""Prints a few answers of a results file: `python examples/show.py out/results.jsonl`."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

SHOWN = ("capital-japan", "haiku-autumn", "review-hotel", "count", "embed-cat")


def main(results: Path) -> None:
    prompts = read(Path(__file__).with_name("prompts.jsonl"))
    answers = read(results)
    for custom_id in SHOWN:
        print(f"\n  {custom_id}")
        for mark, text in ((">", asked(prompts[custom_id]["body"])), ("<", answered(answers[custom_id]))):
            shown = textwrap.shorten(text, 300)
            print(textwrap.fill(shown, 100, initial_indent=f"    {mark} ", subsequent_indent="      "))
    print(f"""
All answers are in {results}, one a line, in the order of examples/prompts.jsonl.
Next:
  .venv/bin/slotstream serve -m demo                            the same as a service, on http://127.0.0.1:8080
  .venv/bin/slotstream run my.jsonl -o out.jsonl -m model.gguf  your own file, your own model
  README.md tells what there is, ARCHITECTURE.md how it works.""")


def read(path: Path) -> dict[str, Any]:
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["custom_id"]: line for line in lines}


def asked(body: dict[str, Any]) -> str:
    text = body["messages"][-1]["content"] if "messages" in body else body.get("prompt", body.get("input"))
    return str(text)


def answered(record: dict[str, Any]) -> str:
    body = record["response"]["body"] if record["response"] else {"error": record["error"]}
    match body:
        case {"choices": [{"message": {"content": text}}, *_]}:
            return str(text)
        case {"content": text}:
            return str(text)
        case {"data": [{"embedding": [*values]}, *_]}:
            first = ", ".join(f"{value:.3f}" for value in values[:4])
            return f"[{first}, ...]: {len(values)} numbers"
    return json.dumps(body, ensure_ascii=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
