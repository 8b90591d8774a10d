from __future__ import annotations

import email.utils
import json
import time

import pytest
from starlette.exceptions import HTTPException

from api.cli.events import EventBuffer
from api.cli.jobservice import JobService, JobView
from api.cli.service import LONGEST_PAUSE_S, Pause, ServiceLost, is_path_unknown, retry_after
from api.problems import body_of
from shared.errors import UnknownJob, UnknownModel
from tests.api.cli.conftest import JobsServer

ASKED = {"endpoint": "/completion", "body": {}, "priority": "bulk"}

STREAM = b': hello\n\nid: 1\nevent: token\ndata: {"text": "a"}\n\n\n\nevent: done\ndata: {"x":\ndata: 1}\n\nevent: lost'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_the_same_however_the_stream_is_cut(size: int) -> None:
    buffer = EventBuffer()
    events = [event for start in range(0, len(STREAM), size) for event in buffer.push(STREAM[start : start + size])]
    assert [(event.name, event.number, event.data) for event in events] == [
        ("token", 1, b'{"text": "a"}'),
        ("done", 0, b'{"x":\n1}'),
    ]


def test_pauses_grow_up_to_a_limit_and_a_wish_goes_first() -> None:
    pause = Pause()
    grown = [pause.seconds(None) for _ in range(12)]
    assert grown[0] < 0.3
    assert LONGEST_PAUSE_S * 0.8 <= grown[-1] <= LONGEST_PAUSE_S * 1.2
    assert 2.4 <= pause.seconds(3.0) <= 3.6
    assert pause.seconds(1e9) < 100


@pytest.mark.parametrize(
    ("header", "seconds"), [("2", 2.0), ("0.5", 0.5), ("", None), ("soon", None), ("-3", None), ("nan", None)]
)
def test_retry_after_is_seconds_or_nothing(header: str, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    seconds = retry_after(email.utils.formatdate(time.time() + 30, usegmt=True))
    assert seconds is not None
    assert 25 < seconds <= 30


async def test_a_service_that_stays_away_is_given_up(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=1_000_000, status=503)
    async with JobService(jobs_server.url, patience_s=0.2) as service:
        with pytest.raises(ServiceLost, match="has been away for 0 s: the service answered 503: come back"):
            await service.submit("key", ASKED)


async def test_a_service_that_is_only_full_is_not_given_up(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=10, status=429)
    async with JobService(jobs_server.url, patience_s=0.0) as service:
        await service.submit("key", ASKED)
        assert service.trouble is None


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "//v1//"])
async def test_a_url_may_be_an_openai_base_url(jobs_server: JobsServer, tail: str) -> None:
    async with JobService(jobs_server.url + tail) as service:
        await service.check()
        assert isinstance(await service.submit("key", ASKED), JobView)


@pytest.mark.parametrize(
    ("path", "sentence"), [("/elsewhere", "is not a slotstream: GET"), ("/locked", "refuses the API key")]
)
async def test_the_check_asks_the_jobs_api_itself(jobs_server: JobsServer, path: str, sentence: str) -> None:
    async with JobService(jobs_server.url + path) as service:
        with pytest.raises(ServiceLost, match=sentence):
            await service.check()


async def test_a_path_that_is_not_there_is_no_answer_to_a_line(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=1, status=404)
    async with JobService(jobs_server.url) as service:
        with pytest.raises(ServiceLost, match="is not a slotstream: POST /v1/jobs answered 404"):
            await service.submit("key", ASKED)


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (UnknownJob("There is no such job"), False),
        (UnknownModel("Several models are served"), False),
        (HTTPException(404), True),
        (HTTPException(405), True),
    ],
)
def test_a_path_is_told_from_a_job_and_a_model_by_what_the_api_really_says(error: Exception, is_unknown: bool) -> None:
    body = body_of(error, with_param=True)
    assert is_path_unknown(body["error"]["code"], json.dumps(body).encode()) is is_unknown


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"detail":"Not Found"}', b'{"error":"no"}', b'{"error":{}}'])
def test_a_404_of_others_is_about_the_path(content: bytes) -> None:
    assert is_path_unknown(404, content)


async def test_a_key_that_is_refused_ends_it_at_once(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=1, status=401)
    async with JobService(jobs_server.url, api_key="wrong") as service:
        with pytest.raises(ServiceLost, match="refuses the API key"):
            await service.submit("key", ASKED)
