"""Makes `greedy.json`, the texts that llama.cpp's own server gives: `python -m tests.end_to_end.make_greedy BINARY`.

`bench/llama_server.py` says how the binary is built, from the very source that llama-cpp-python carries. One slot, one
thread, no prompt cache: each text is what one sequence alone comes to.

Temperature 0 leaves no chance in it, but rounding. On CPUs llama.cpp computes attention by tiles when a batch has 64
rows or more, and sums in another order than for fewer; where weights are quantized, activations then are quantized
otherwise here and there, which moved logits of the demo model by 0.4 to 1. With fewer rows everything came out the
same to the last bit, in any company and in any pieces. So both sides take at most 32 rows at once here. Nor is a text
kept beyond a token that led the next likely one by next to nothing, since other processors round otherwise;
`least_lead` says by how much all of its tokens led, in nats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from bench.llama_server import llama_server, version_of
from tests.models import demo_model_path

FILE = Path(__file__).with_name("greedy.json")
FLAGS = ("-np", "1", "-t", "1", "-c", "2048", "-b", "32", "-ub", "32", "-fa", "auto", "--cache-ram", "0")
REQUEST = {"temperature": 0, "cache_prompt": False}
MIN_LEAD = 0.05
"""Nats."""


def chat(question: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


LONG = """\
The harbour at Venn lies where two rivers meet the sea, and for as long as anyone has kept records the people there
have argued about the mud. It comes down with the spring floods, grey and fine, and settles wherever the current
slackens. Every few years somebody proposes a wall. The first was built of oak and stone, and it stood for eleven
winters before the ice took it. The second was built of brick, by a man who had never seen the place in March, and it
lasted two. After that the council decided to dredge instead. They bought a machine with forty iron buckets on a
chain, painted it red, and named it after the mayor's wife, who did not thank them for it. The machine worked from
April until the first frost, and what it lifted was carried in barges to the marsh behind the church, where it dried
in long low banks. Grass grew on the banks, then willow, and then, to everybody's surprise, strawberries. Nobody had
planted them. The schoolmaster thought that birds had brought the seeds; the priest had another explanation. Within
ten years the strawberries of Venn were sold in the capital, in small baskets with a red ribbon, and the council had
quite forgotten that there had ever been a quarrel about mud. Then, one dry summer, the dredger broke down, and the
harbour began to fill again. The fishermen came to the town hall with their caps in their hands and asked what was to
be done. In short, the story of the harbour teaches that""".replace("\n", " ")

PROMPTS: list[tuple[str, Any, int]] = [
    ("a question", chat("What is the capital of Japan?"), 32),
    ("another question", chat("What is the capital of France?"), 32),
    ("an echo", chat("Repeat after me: one two three four five six seven eight nine ten"), 32),
    ("a second turn", chat("Name a fruit.") + "An apple.<|im_end|>\n<|im_start|>user\nAnd another?<|im_end|>\n", 24),
    ("Python", "def fibonacci(n):\n    if n < 2:\n        return n\n", 32),
    ("C", "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n", 32),
    ("Java", "public class Hello {\n    public static void main(String", 32),
    ("a table", "| city | country |\n|---|---|\n| Paris | France |\n| Rome |", 32),
    ("a letter", "Dear Sir or Madam,\n\nI am writing to", 32),
    ("French", "un, deux, trois, quatre, cinq,", 32),
    ("Spanish", "Uno, dos, tres, cuatro,", 32),
    ("Italian", "Nel mezzo del cammin di nostra vita", 24),
    ("Russian", "Один, два, три, четыре,", 24),
    ("Greek", "Καλημέρα κόσμε, καλημέρα κόσμε,", 24),
    ("Arabic", "السلام عليكم السلام عليكم السلام عليكم", 24),
    ("Hindi", "नमस्ते नमस्ते नमस्ते", 24),
    ("Chinese", "中文:你好。英文:Hello.中文:谢谢。英文:", 24),
    ("Japanese", "1月、2月、3月、4月、", 24),
    ("emoji", "👋 hello 👋 hello 👋", 24),
    ("emoji and words", "Emoji: 🐶 dog, 🐱 cat, 🐭", 24),
    ("numbers", "1, 2, 3, 4, 5, 6, 7, 8,", 40),
    ("a space", " ", 24),
    ("token ids and text", [9906, "hello", 28], 24),
    ("a long passage", f"{LONG} {LONG[:600]}", 48),
]


async def ask(http: aiohttp.ClientSession, prompt: Any, n_predict: int) -> dict[str, Any]:
    """The text, how many tokens it has, and by how much each led the next likely one, in nats."""
    body = REQUEST | {"prompt": prompt, "n_predict": n_predict, "n_probs": 2}
    async with http.post("/completion", json=body, raise_for_status=True) as response:
        answer = await response.json()
    tops = [token["top_logprobs"] for token in answer["completion_probabilities"]]
    return {
        "content": answer["content"],
        "n_tokens": answer["tokens_predicted"],
        "stop_type": answer["stop_type"],
        "leads": [first["logprob"] - second["logprob"] for first, second in tops],
    }


async def text_of(http: aiohttp.ClientSession, name: str, prompt: Any, n_predict: int) -> dict[str, Any]:
    """As many of the tokens as are beyond doubt."""
    whole = await ask(http, prompt, n_predict)
    n_sure = next((n for n, lead in enumerate(whole["leads"]) if lead < MIN_LEAD), n_predict)
    sure = whole if n_sure >= n_predict else await ask(http, prompt, n_sure)
    lead = round(min(sure.pop("leads")), 3)
    return {"name": name, "prompt": prompt, "n_predict": min(n_sure, n_predict), **sure, "least_lead": lead}


def make(binary: Path) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        llama_server(binary, demo_model_path(), *FLAGS, log=Path(folder) / "log") as url,
    ):
        texts = asyncio.run(texts_of(url))
    return {
        "note": " ".join(__doc__.split()),
        "llama_server": version_of(binary),
        "model": demo_model_path().name,
        "flags": " ".join(FLAGS),
        "request": REQUEST,
        "texts": texts,
    }


async def texts_of(url: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(url) as http:
        return [await text_of(http, *prompt) for prompt in PROMPTS]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.end_to_end.make_greedy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("binary", type=Path, help="llama-server")
    made = make(parser.parse_args().binary)
    FILE.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n")
    for text in made["texts"]:
        print(f"{text['n_tokens']:4} tokens, least lead {text['least_lead']:6.3f}  {text['name']}")


if __name__ == "__main__":
    main()
