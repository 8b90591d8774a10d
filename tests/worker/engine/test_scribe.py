"""What the scribe finds in a text and ends it by, and what it tells of tokens, on a real engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.events import StopType
from shared.jobs import Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.harness import Recorded, config, task
from worker.engine import GenerateTask

NEW_LINE = ord("\n")
ALWAYS, NEVER = 1000.0, None


def asked(job_id: str, new_lines: float | None, **request: Any) -> GenerateTask:
    """A text of new lines alone, or of none."""
    bias = ((NEW_LINE, new_lines),)
    sampling = Sampling(temperature=0.0, ignore_eos=True, logit_bias=bias)
    made = task(job_id, b"Hi", n_predict=request.pop("n_predict", 1500), sampling=sampling)
    return replace(made, request=made.request.model_copy(update=request))


def test_time_ends_a_text_once_a_line_was_begun(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ctx=8192)) as engine:
        hurried, free, short = engine.run(
            asked("lines", ALWAYS, t_max_predict_ms=2, stop=("\n\nno",)),  # two are held back at the end
            asked("no lines", NEVER, t_max_predict_ms=2, n_predict=300),
            asked("no limit", ALWAYS, t_max_predict_ms=0, n_predict=300),
        )
        assert hurried.stop_type is StopType.LIMIT and not hurried.truncated
        assert hurried.timings.predicted_ms >= 2 and hurried.timings.predicted_n < 1500
        assert hurried.text == "\n" * hurried.timings.predicted_n == engine.streamed("lines")
        assert free.timings.predicted_n == short.timings.predicted_n == 300
        assert (hurried.has_new_line, free.has_new_line) == (True, False)
        # One more was chosen before the engine knew.
        assert engine.engine.snapshot().work.n_predicted_tokens - 600 - hurried.timings.predicted_n in (0, 1)


def test_a_line_without_indentation_ends_the_text_and_what_was_decoded_meanwhile_is_dropped(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        [answer] = engine.run(asked("lines", ALWAYS, n_indent=1))
        assert (answer.text, answer.stop_type, answer.stopping_word) == ("\n", StopType.LIMIT, "")
        assert engine.streamed("lines") == "\n" and answer.timings.predicted_n == 2
        [again] = engine.run(replace(asked("again", ALWAYS, n_indent=1), produced=answer.ids))
        assert (again.text, again.stop_type, engine.tokens("again")) == ("\n", StopType.LIMIT, [])


def test_timings_are_told_with_each_token_when_asked_for(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        [answer] = engine.run(asked("told", ALWAYS, n_predict=5, timings_per_token=True))
        timings = [event.timings for event in engine.tokens("told")]
        assert [each.predicted_n for each in timings if each] == [1, 2, 3, 4, 5]
        assert timings[-1] == answer.timings
        engine.run(asked("untold", ALWAYS, n_predict=5))
        assert all(event.timings is None for event in engine.tokens("untold"))


def test_the_end_of_a_generation_is_an_id_and_no_logprob(byte_model: Path) -> None:
    ending = task("end", b"Hi", sampling=Sampling(temperature=0.0, logit_bias=((BYTE_EOS, 1000.0),)))
    with Recorded(config(byte_model)) as engine:
        [answer] = engine.run(replace(ending, request=ending.request.model_copy(update={"has_logprobs": True})))
        assert (answer.ids, answer.logprobs, answer.stop_type) == ((BYTE_EOS,), (), StopType.EOS)
        [answer] = engine.run(asked("text", ALWAYS, n_predict=3, has_logprobs=True))
        assert [(each.id, each.piece_bytes, each.top) for each in answer.logprobs] == [(NEW_LINE, b"\n", ())] * 3
