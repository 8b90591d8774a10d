"""What ollama's clients are told of models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from api.schemas.ollama.models import running_json, show_json, tag_json
from shared.events import Properties
from tests.api.scripted_worker import card


def test_a_digest_is_long_enough_to_be_cut_and_another_ones_for_another_file() -> None:
    def digest(**more: Any) -> str:
        told: str = tag_json(card("tiny", **more))["digest"]
        return told

    digests = [digest(), digest(modified_at=5.0), digest(n_params=7), digest(quantization="F16")]
    assert len(set(digests)) == 4 and {len(each) for each in digests} == {64}
    assert digest() == digests[0] == running_json(card("tiny"))["digest"]


def test_all_times_can_be_read() -> None:
    times = [tag_json(card("tiny"))["modified_at"], tag_json(card("tiny", modified_at=1.5))["modified_at"]]
    times += [running_json(card("tiny"))["expires_at"], show_json(card("tiny"), Properties())["modified_at"]]
    assert [datetime.fromisoformat(each).year for each in times] == [1, 1970, 9999, 1]


def test_what_stands_in_the_file_counts_before_what_we_reckon() -> None:
    shown = show_json(card("tiny", n_params=7), Properties(metadata={"general.architecture": "llama"}))
    assert shown["model_info"] == {"general.parameter_count": 7, "general.architecture": "llama"}
    told = show_json(card("tiny", n_params=7), Properties(metadata={"general.parameter_count": 8}))
    assert told["model_info"] == {"general.parameter_count": 8}
