"""Which files of a repository are a model: its quantization, its parts, its projector. Pure.

The rules are those of llama.cpp (`common/download.cpp`), so that the same name means the same file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from shared.modelfile import Split

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
"""What is taken where none is asked for, before the first file that there is."""

COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""In the names of GGUF files that go with a model and are none."""

_QUANT = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    path: str
    """In its repository, with slashes; safe to be joined to a folder."""
    size: int | None = None
    oid: str = ""
    """What the hub calls its content: the SHA-256 of a large file, Git's hash of a small one."""

    @property
    def sha256(self) -> str:
        return self.oid if len(self.oid) == 64 else ""


def is_safe(path: str) -> bool:
    """Whether a name from the network stays below the folder that it is joined to, and is one that any disk takes."""
    parts = path.split("/")
    return all(0 < len(part.encode(errors="replace")) <= 200 and part not in (".", "..") for part in parts) and (
        not re.search(r'[\x00-\x1f\x7f\\:*?"<>|\ud800-\udfff]', path)
    )


def model_parts(files: Sequence[RemoteFile], quant: str, name: str) -> list[RemoteFile]:
    """The files of the model that is meant, the first part first: `name` where it is given, else by `quant`.

    ValueError, with what there is, when there is none such, or not all of its parts.
    """
    first = _named(files, name) if name else _by_quant(files, quant)
    split = Split.of(first.path)
    if split.n_parts <= 1:
        return [first]
    by_path = {file.path: file for file in files}
    if missing := [path for path in split.paths() if path not in by_path]:
        raise ValueError(f"lacks {missing[0]}, a part of the model")
    return [by_path[path] for path in split.paths()]


def projector_of(files: Sequence[RemoteFile], model: str) -> RemoteFile | None:
    """The projector that goes with a model: nearest above it in the folders, then nearest to it in bits."""
    folder = PurePosixPath(model).parent
    beside = [
        file
        for file in files
        if _is_gguf(file.path) and "mmproj" in file.path and folder.is_relative_to(PurePosixPath(file.path).parent)
    ]
    wanted = _bits(model)
    return min(
        beside, key=lambda file: (-len(PurePosixPath(file.path).parts), abs(_bits(file.path) - wanted)), default=None
    )


def _named(files: Sequence[RemoteFile], name: str) -> RemoteFile:
    for file in files:
        if file.path == name:
            return file
    raise ValueError(f"has no file {name}; {_what_there_is(files)}")


def _by_quant(files: Sequence[RemoteFile], quant: str) -> RemoteFile:
    models = [file for file in files if _is_model(file.path) and Split.of(file.path).number == 1]
    for wanted in (quant,) if quant else DEFAULT_QUANTS:
        for file in models:
            if re.search(re.escape(wanted) + "[.-]", file.path, re.IGNORECASE):
                return file
    if models and not quant:
        return models[0]
    raise ValueError(f"has no model {quant} in GGUF".replace("  ", " ") + f"; {_what_there_is(files)}")


def _what_there_is(files: Sequence[RemoteFile]) -> str:
    names = [file.path for file in files if _is_gguf(file.path)]
    if not names:
        return "there is no GGUF file in it at all"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"there are {', '.join(names[:10])}{more}"


def _is_gguf(path: str) -> bool:
    return path.endswith(".gguf")


def _is_model(path: str) -> bool:
    return _is_gguf(path) and not any(mark in PurePosixPath(path).name for mark in COMPANIONS)


def _bits(path: str) -> int:
    """4 for Q4_0, 16 for F16; 0 where the name does not say."""
    quant = _QUANT.search(Split.of(path).stem)
    number = re.search(r"\d+", quant[1]) if quant else None
    return int(number[0]) if number else 0
