"""Which names a client may give to a file in a folder of ours. Pure."""

from __future__ import annotations

import unicodedata

MAX_BYTES = 255
"""Of the name in UTF-8: as many as the file systems in use take."""

_SEPARATORS = frozenset('/\\:*?"<>|')
_LOOKALIKES = frozenset("\uff0e\u2024\u2215\u2044\u29f8\u2216\ufe68\uff0f\uff3c\ufffd")
"""Of dots and separators, which some file systems take for them, and what stands for a character that was lost."""


def is_safe_filename(name: str) -> bool:
    """Whether it names one visible file in whatever folder, on whatever system: llama.cpp's rule for such names, and no
    dot in front, which is for what we name ourselves."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False  # half of a pair of surrogates
    if not 0 < n_bytes <= MAX_BYTES or name[0] in " ." or name[-1] in " ." or ".." in name:
        return False
    return not any(
        character in _SEPARATORS or character in _LOOKALIKES or unicodedata.category(character) in _INVISIBLE
        for character in name
    )


_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of characters that are none, or do something unseen."""
