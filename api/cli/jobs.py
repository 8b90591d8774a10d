"""`slotstream jobs`: what is in the queue, and what becomes of it. A client of the HTTP API without a back door.

How jobs look stands in `jobprint`, the protocol in `jobservice`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from api.cli.events import Event
from api.cli.jobprint import Printer, printer_of
from api.cli.jobservice import JobService, JobView
from api.cli.service import Refusal, ServiceLost
from api.schemas.strict import parse_object
from shared.errors import InvalidRequest
from shared.jobs import JobStatus, Lane, partition_of
from shared.settings import ConfigError, JobsSettings, Parser, add_flags

PROG = "slotstream jobs"
EXIT_NO, EXIT_NOT_DONE, EXIT_PIPE_CLOSED = 1, 2, 141
CODES = "Exit codes: 0 yes, 1 the answer is no (no such job, refused, not succeeded), 2 it could not be asked."
LARGEST_PAGE = 100
SHORT_PATIENCE_S = 5.0
"""How long a question that is answered at once waits for a service that is away."""

Action = Callable[[JobService, argparse.Namespace, Printer], Awaitable[int]]


def jobs(argv: Sequence[str]) -> int:
    asked = vars(_parser().parse_args(argv))
    given = {name: asked.pop(name) for name in ("url", "api_key") if name in asked}
    prog = f"{PROG} {asked['action']}"
    try:
        settings = JobsSettings.load(asked.pop("config", None), **given)
        code = asyncio.run(_act(settings, argparse.Namespace(**asked), prog))
        sys.stdout.flush()
    except (ConfigError, ServiceLost, _Unusable) as error:
        _say(prog, str(error))
        return EXIT_NOT_DONE
    except BrokenPipeError:  # whoever read us has left
        return EXIT_PIPE_CLOSED
    return code


class _Unusable(Exception):
    """What was given to be sent is nothing that can be. The message is one sentence."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROG, description="What is in the queue, and what becomes of it.", epilog=CODES)
    _add_common(parser)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)

    def add(name: str, act: Action, summary: str, *, patience_s: float = SHORT_PATIENCE_S) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=summary, epilog=CODES, allow_abbrev=False)
        action.set_defaults(act=act, patience_s=patience_s)
        _add_common(action)
        return action

    listing = add("list", _list, "jobs, newest first")
    listing.add_argument(
        "--status", choices=[each.value for each in JobStatus], metavar="STATUS", help=", ".join(JobStatus)
    )
    listing.add_argument("--limit", type=_count, default=20, metavar="N", help="jobs at most (default: 20)")

    showing = add("show", _show, "one job with its result")
    showing.add_argument("id", metavar="ID")

    cancelling = add("cancel", _cancel, "end jobs; those that have ended stay as they are")
    cancelling.add_argument("ids", metavar="ID", nargs="+")

    following = add("events", _events, "what a job says, as it says it, until it ends", patience_s=600.0)
    following.add_argument("id", metavar="ID")
    following.add_argument("--after", type=_number, default=0, metavar="N", help="begin behind event N")

    submitting = add("submit", _submit, "make a job of a request and print its id", patience_s=600.0)
    submitting.add_argument("file", metavar="FILE", nargs="?", default="-", help="the request's JSON; - is stdin")
    submitting.add_argument(
        "--endpoint", default="/completion", metavar="PATH", help="path that would answer it (default: /completion)"
    )
    submitting.add_argument(
        "--priority", choices=[each.value for each in Lane], metavar="LANE", help="bulk (default) or interactive"
    )
    submitting.add_argument("--deadline-s", type=float, metavar="N", help="seconds after which it is given up")
    submitting.add_argument(
        "--metadata", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="kept with the job"
    )
    submitting.add_argument("--idempotency-key", metavar="KEY", help="the same key makes the same job, not another")
    submitting.add_argument("--wait", action="store_true", help="print what it says, and exit as it ends")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """What may stand before the action and behind it; behind it counts."""
    add_flags(parser, JobsSettings)
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="JSON, one object a line, instead of text for people",
    )


async def _act(settings: JobsSettings, asked: argparse.Namespace, prog: str) -> int:
    key = settings.api_key.get_secret_value() if settings.api_key else None
    act: Action = asked.act
    service = JobService(
        settings.url,
        api_key=key,
        patience_s=asked.patience_s,
        tell=lambda why: _say(prog, f"waiting: {why}"),
    )
    async with service:
        await service.check()
        return await act(service, asked, printer_of(prog, is_json="json" in asked))


async def _list(service: JobService, asked: argparse.Namespace, printer: Printer) -> int:
    found: list[JobView] = []
    query = {"status": asked.status} if asked.status else {}
    while len(found) < asked.limit:
        page = await service.page(query | {"limit": str(min(asked.limit - len(found), LARGEST_PAGE))})
        if isinstance(page, Refusal):
            return printer.refuse(str(page))
        found += page.data
        if not page.has_more or page.last_id is None:
            break
        query["after"] = page.last_id
    printer.list(found)
    return 0


async def _show(service: JobService, asked: argparse.Namespace, printer: Printer) -> int:
    job = await service.look(asked.id) if _may_be(asked.id) else None
    if job is None:
        return printer.miss(asked.id)
    printer.show(job)
    return 0


async def _cancel(service: JobService, asked: argparse.Namespace, printer: Printer) -> int:
    code = 0
    for job_id in asked.ids:
        job = await service.cancel(job_id) if _may_be(job_id) else None
        if job is None:
            code = printer.miss(job_id)
        else:
            printer.cancelled(job)
    return code


async def _events(service: JobService, asked: argparse.Namespace, printer: Printer) -> int:
    if not _may_be(asked.id):
        return printer.miss(asked.id)
    job = await service.follow(asked.id, after=asked.after, on_event=printer.event)
    if job is None:
        return printer.miss(asked.id)
    printer.ended(job)
    return _code_of(job)


async def _submit(service: JobService, asked: argparse.Namespace, printer: Printer) -> int:
    # With a key of its own the question may be asked again after a lost answer, and is one job all the same.
    key = asked.idempotency_key or f"cli-{uuid.uuid4()}"
    job = await service.submit(key, _fields(asked))
    if isinstance(job, Refusal):
        return printer.refuse(str(job))
    printer.submitted(job, is_awaited=asked.wait)
    if not asked.wait:
        return 0
    heard = 0

    def hear(event: Event) -> None:
        nonlocal heard
        heard += event.name == "token"
        printer.awaited_event(event)

    ended = await service.follow(job.id, on_event=hear)
    if ended is None:
        return printer.miss(job.id)
    printer.awaited(ended, has_spoken=heard > 0)
    return _code_of(ended)


def _fields(asked: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "endpoint": asked.endpoint,
        "body": _body(asked.file),
        "priority": asked.priority,
        "deadline_s": asked.deadline_s,
        "metadata": dict(asked.metadata) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _body(file: str) -> dict[str, Any]:
    """Raises _Unusable."""
    if file == "-" and sys.stdin.isatty():
        raise _Unusable("name a FILE with the request's JSON, or pipe it in")
    try:
        return parse_object(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise _Unusable(f"{file}: {error.strerror or error}") from None
    except InvalidRequest as error:
        raise _Unusable(f"{'stdin' if file == '-' else file}: {error.message}") from None


def _code_of(job: JobView) -> int:
    return 0 if job.status == JobStatus.SUCCEEDED else EXIT_NO


def _may_be(job_id: str) -> bool:
    """Whether it looks like a job's id; anything else might name another path."""
    try:
        partition_of(job_id)
    except ValueError:
        return False
    return True


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _count(text: str) -> int:
    if (number := _number(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _say(prog: str, text: str) -> None:
    print(f"{prog}: {text}", file=sys.stderr, flush=True)
