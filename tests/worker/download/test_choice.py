"""Which files of a repository are meant."""

from __future__ import annotations

import pytest

from shared.modelfile import Split
from worker.download.choice import RemoteFile, is_safe, model_parts, projector_of


def chosen(paths: str, quant: str = "", name: str = "") -> list[str]:
    return [file.path for file in model_parts([RemoteFile(path) for path in paths.split()], quant, name)]


@pytest.mark.parametrize(
    ("paths", "quant", "model"),
    [
        ("m-F16.gguf m-Q8_0.gguf m-Q4_K_M.gguf", "", "m-Q4_K_M.gguf"),
        ("m-F16.gguf m-Q8_0.gguf", "", "m-Q8_0.gguf"),
        ("README.md m-F16.gguf m-Q2_K.gguf", "", "m-F16.gguf"),
        ("m-F16.gguf m-Q8_0.gguf m-Q4_K_M.gguf", "F16", "m-F16.gguf"),
        ("m-F16.gguf m-Q8_0.gguf", "q8_0", "m-Q8_0.gguf"),
        ("q8_0/m.gguf m.Q8_0.gguf", "Q8_0", "m.Q8_0.gguf"),
        ("mmproj-m-Q8_0.gguf mtp-m-Q8_0.gguf m-Q8_0.imatrix.gguf m-Q8_0.gguf", "Q8_0", "m-Q8_0.gguf"),
        ("m-Q4_K_M.txt m-Q8_0.gguf", "", "m-Q8_0.gguf"),
    ],
)
def test_a_quantization_means_the_file_that_llama_cpp_takes(paths: str, quant: str, model: str) -> None:
    assert chosen(paths, quant) == [model]


def test_a_named_file_is_taken_whatever_its_quantization() -> None:
    assert chosen("m-Q4_K_M.gguf b/m-F16.gguf", "Q4_K_M", "b/m-F16.gguf") == ["b/m-F16.gguf"]


def test_all_parts_of_a_model_come_in_order() -> None:
    paths = "b/m-Q8_0-00002-of-00003.gguf b/m-Q8_0-00003-of-00003.gguf b/m-Q8_0-00001-of-00003.gguf m-F16.gguf"
    parts = [f"b/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert chosen(paths) == chosen(paths, name=parts[1]) == parts


@pytest.mark.parametrize(
    ("paths", "quant", "name", "said"),
    [
        ("README.md", "", "", "no GGUF file in it at all"),
        ("m-F16.gguf m-Q8_0.gguf", "Q4_0", "", "no model Q4_0 in GGUF; there are m-F16.gguf, m-Q8_0.gguf"),
        ("m-F16.gguf", ".*", "", "no model"),
        ("m-F16.gguf", "", "other.gguf", "no file other.gguf; there are m-F16.gguf"),
        ("m-00001-of-00002.gguf", "", "", "lacks m-00002-of-00002.gguf"),
        (" ".join(f"{n}.gguf" for n in range(99)), "Q8_0", "", "9.gguf and 89 more"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(paths: str, quant: str, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        chosen(paths, quant, name)


@pytest.mark.parametrize(
    ("paths", "model", "projector"),
    [
        ("m-Q8_0.gguf", "m-Q8_0.gguf", None),
        ("mmproj-F16.gguf mmproj-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-Q8_0.gguf"),
        ("mmproj-F16.gguf b/mmproj-F16.gguf", "b/m-F16.gguf", "b/mmproj-F16.gguf"),
        ("mmproj-F16.gguf", "b/c/m-F16.gguf", "mmproj-F16.gguf"),
        ("c/mmproj-F16.gguf", "b/m-F16.gguf", None),
    ],
)
def test_the_projector_is_the_nearest(paths: str, model: str, projector: str | None) -> None:
    found = projector_of([RemoteFile(path) for path in paths.split()], model)
    assert (found and found.path) == projector


@pytest.mark.parametrize("path", ["m.gguf", "b/m.gguf", "b/.hidden/m ü.gguf", "...gguf"])
def test_a_name_within_a_repository_is_safe(path: str) -> None:
    assert is_safe(path)


@pytest.mark.parametrize(
    "path", ["", "/m", "../m", "b/../m", "b//m", "b/", ".", "b\\..\\m", "C:m", "a\0b", "a\nb", "a" * 300, "\ud800"]
)
def test_a_name_that_leads_elsewhere_is_not(path: str) -> None:
    assert not is_safe(path)


def test_the_stem_of_a_model_in_parts_has_no_number() -> None:
    assert Split.of("m-Q8_0-00002-of-00003.gguf") == ("m-Q8_0", 2, 3)
    assert Split.of("m-Q8_0.gguf") == ("m-Q8_0", 1, 1)
