"""The head of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.models import write_byte_model
from worker.demo import demo_model_path
from worker.metadata import LONGEST_LIST, LONGEST_TEXT, MOST_BYTES, read_metadata


def written(path: Path, **values: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_int64, float: writer.add_float64, str: writer.add_string}
        add.get(type(value), writer.add_array)(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_values_keep_their_types(tmp_path: Path) -> None:
    values = {"number": -7, "small": 1e-12, "truth": True, "text": "é7", "words": ["a", "b"], "layers": [1, 2, 3]}
    read = read_metadata(written(tmp_path / "m.gguf", **values))
    assert {name: read[name] for name in values} == values
    assert [type(read[name]) for name in values] == [int, float, bool, str, list, list]
    assert read["general.architecture"] == "llama"


def test_what_is_long_is_told_of_and_not_told(tmp_path: Path) -> None:
    long = {
        "words": ["a"] * (LONGEST_LIST + 1),
        "layers": [1] * (LONGEST_LIST + 1),
        "text": "a" * (LONGEST_TEXT + 1),
        "nan": float("nan"),
    }
    read = read_metadata(written(tmp_path / "m.gguf", **long, last=1))
    assert {name: read[name] for name in long} == dict.fromkeys(long)
    assert read["last"] == 1


def test_all_together_is_bounded(tmp_path: Path) -> None:
    read = read_metadata(written(tmp_path / "m.gguf", **{f"text{n}": "a" * LONGEST_TEXT for n in range(99)}))
    assert 10 < len(read) < 99
    assert sum(len(name) + len(str(value)) for name, value in read.items()) <= MOST_BYTES


def test_a_real_model_tells_what_gguf_reads_of_it() -> None:
    read = read_metadata(demo_model_path())
    assert (read["llama.block_count"], read["tokenizer.ggml.add_bos_token"]) == (30, False)
    assert read["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    assert read["tokenizer.ggml.tokens"] is None


def test_a_file_that_is_cut_off_or_no_such_file_is_an_error(tmp_path: Path) -> None:
    path = write_byte_model(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for content in (whole[:200], b"GGUF", b"nothing at all, but long", whole[:4] + b"\1" + whole[5:], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            read_metadata(path)
