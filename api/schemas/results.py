"""What an endpoint would have answered, of a job that was kept: rendered anew from its record whenever it is asked for.

Knows no HTTP, and not who asks.
"""

from __future__ import annotations

import json
from typing import Any

from api.schemas.answers import answers_of, prompt_usage_json, scores_of, usage_json, vectors_of
from api.schemas.ask import Ask, Origin
from api.schemas.dialect import DIALECTS
from shared.events import Finished, Score, Vector
from shared.jobs import Generation, JobRecord


def ask_of(record: JobRecord) -> Ask:
    """What was asked, as those read it whom it was made for, whomever this server speaks with now. Of a record with a
    body."""
    assert record.body is not None, "nobody kept what was asked"
    return DIALECTS[record.compat].readers[record.endpoint](json.loads(record.body))


def result_of(record: JobRecord, answered: Finished, ask: Ask) -> Any:
    """The answer as JSON values, of a job that succeeded."""
    origin = Origin(record.id, record.model, int(record.created_at))
    return ask.shape(origin).body([answered])


def usage_json_of(answered: Finished, ask: Ask | None) -> dict[str, Any]:
    """Tokens, by OpenAI's older names."""
    computed: list[Vector | Score] = [*vectors_of(answered), *scores_of(answered)]
    if computed:
        return prompt_usage_json(computed)
    answers = answers_of(answered)
    # A job that nobody keeps a body of has one prompt.
    n_choices = ask.request.n if ask and isinstance(ask.request, Generation) else len(answers)
    return usage_json(answers, n_choices)
