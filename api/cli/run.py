"""`slotstream run IN.jsonl -o OUT.jsonl`: a bulk file from start to finish, resumable at any moment.

This file is the story; its nouns are beside it: the file (`batchfile`), durable progress (`spool`, `runfolder`), the
jobs API (`service`), a stack of its own (`stack`) and the display (`progress`).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from rich.console import Console

from api.cli.batchfile import BadInput, Survey, bad_subject_of, idempotency_key, subject_of, survey, written
from api.cli.progress import BarDisplay, Display, Meter, PlainDisplay, Snapshot, duration, shown
from api.cli.runfolder import BadOutput, InputChanged, ModelChanged, RunFolder, RunModel
from api.cli.service import JobView, Refusal, Service, ServiceLost
from api.cli.signals import Interruption
from api.cli.spool import ForeignPart, Ledger
from api.cli.stack import Place, check_model, check_slot_folder, config_of, free_port, open_stack
from api.cli.state import state_folder
from api.cli.supervisor import ChildRefused
from api.keys import keys_of
from api.lines.reading import BadLine, Line, LineChecker, read_lines
from api.lines.record import Subject, answered, unanswered
from shared.flags import flag_of
from shared.modelfile import LoadFailed
from shared.settings import CONFIG_VARIABLE, ApiSettings, ConfigError, RunSettings

PROG = "slotstream run"
EXIT_SOME_FAILED, EXIT_NOT_RUN = 1, 2
MODEL_FIELDS = ("model", "hf_repo", "model_url")
SYNC_S = 1.0
TRIES_OF_A_LOST_JOB = 5
OWN_HOST = "127.0.0.1"
NO_API_KEY = ("SLOTSTREAM_API_KEY", ",")
"""A list of no keys. An empty variable would count as none, and a key in the settings file would be in force."""


def run(argv: Sequence[str]) -> int:
    settings = RunSettings.from_command_line(
        argv, prog=PROG, description="Run a file of OpenAI batch lines; run it again to go on after a stop."
    )
    try:
        _check_model(settings, argv)
        return _run(settings, config_of(argv))
    except (LoadFailed, ConfigError) as error:
        _say(settings.blame(str(error)))
    except (BadInput, BadOutput, InputChanged, ModelChanged, ChildRefused, ServiceLost) as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    return EXIT_NOT_RUN


def _check_model(settings: RunSettings, argv: Sequence[str]) -> None:
    """Raise ConfigError unless there is one model to ask: in a file that is there, or a service's."""
    if settings.url:
        # A variable or a file may name a model for other commands; a flag is meant for this one.
        if flag := _model_flag(argv):
            raise ConfigError(f"{flag} is of no use with --url, where the service has its model; leave out one of them")
    elif settings.origin is None:
        raise ConfigError(
            "which model? Name a GGUF file with -m or a repository with -hf, try -m demo, or use a service with --url"
        )
    elif settings.model:
        check_model(settings.model)
    if not settings.url:
        check_slot_folder(settings.slot_save_path)


def _model_flag(argv: Sequence[str]) -> str | None:
    """The flag that names a model; a short one may have its value right behind it."""
    flags = {
        name: key for key, field in RunSettings.model_fields.items() if (flag := flag_of(field)) for name in flag.names
    }
    for text in argv:
        name = text.partition("=")[0]
        if text == "--":
            return None
        if flags.get(name) in MODEL_FIELDS:
            return name
        if name not in flags and text.startswith("-m"):
            return "-m"
    return None


def _run(settings: RunSettings, config: dict[str, str]) -> int:
    found = survey(settings.input)
    with RunFolder.open(state_folder(settings.state_dir), settings.input, settings.output) as folder:
        model = None if settings.url else RunModel.of(settings)
        if not folder.begin(found, is_restart=settings.restart, model=model):
            failed = f", {_lines(folder.n_failed)} failed" if folder.n_failed else ""
            _say(f"{settings.output} is complete already{failed}; --restart does it again")
            return EXIT_SOME_FAILED if folder.n_failed else 0
        with _ledger(folder, found) as ledger:
            bulk = BulkRun(folder, ledger, found)
            if not ledger.is_complete:
                exit_code = _do_what_is_left(settings, config, folder, bulk)
                if exit_code is not None:
                    _say(f"stopped; {_how_to_go_on(settings, bulk)}")
                    return exit_code
            folder.finish(ledger)
    print(bulk.summary(), flush=True)
    return EXIT_SOME_FAILED if ledger.tally.failed else 0


def _do_what_is_left(settings: RunSettings, config: dict[str, str], folder: RunFolder, bulk: BulkRun) -> int | None:
    """Returns the exit code of an interruption, None when all is done. What asked for nothing leaves nothing."""
    try:
        return asyncio.run(_work(settings, config, folder, bulk))
    finally:
        if not bulk.has_asked:
            folder.forget()


def _how_to_go_on(settings: RunSettings, bulk: BulkRun) -> str:
    if not settings.restart:
        return "the same command goes on from here"
    return "the same command without --restart goes on" if bulk.has_asked else "nothing was begun"


@contextmanager
def _ledger(folder: RunFolder, found: Survey) -> Iterator[Ledger]:
    try:
        with Ledger(folder.part, folder.spool, n_lines=found.n_lines) as ledger:
            yield ledger
    except ForeignPart:
        raise BadOutput(f"{folder.part} has more records than the input has lines; --restart starts over") from None


async def _work(settings: RunSettings, config: dict[str, str], folder: RunFolder, bulk: BulkRun) -> int | None:
    """With a service, or a stack of its own; returns the exit code of an interruption."""
    _allow_many_connections(settings.in_flight)

    def on_stop(number: signal.Signals) -> None:
        bulk.close_display()
        _say(f"{number.name}: stopping (again: at once)")

    with Interruption(on_first=on_stop) as interruption:
        if settings.url:
            key = settings.api_key.get_secret_value() if settings.api_key else None
            async with Service(settings.url, api_key=key) as service:
                await service.check()
                await bulk.work(service, settings.in_flight)
        else:
            await _work_on_own_stack(settings, config, folder, bulk, interruption)
    return interruption.exit_code


async def _work_on_own_stack(
    settings: RunSettings,
    config: dict[str, str],
    folder: RunFolder,
    bulk: BulkRun,
    interruption: Interruption,
) -> None:
    logs = folder.fresh_logs()
    api = ApiSettings.load(config.get(CONFIG_VARIABLE), api_key=())  # as its process will read them
    place = Place(
        folder=folder.valkey,
        host=OWN_HOST,
        port=free_port(OWN_HOST),
        logs=logs,
        certificate=api.ssl_cert_file,
        prefix=api.api_prefix,
    )
    key = next((key.get_secret_value() for key in keys_of(api)), None)
    extra = config | dict([NO_API_KEY])
    if "grace_s" not in settings.model_fields_set:
        extra["SLOTSTREAM_GRACE_S"] = "1"  # a stop keeps what was generated; there is no reason to wait
    if "retention_s" not in settings.model_fields_set:
        extra["SLOTSTREAM_RETENTION_S"] = "3600"  # results are fetched at once; kept longer, they fill memory
    _say(f"starting a worker, an API and a queue of its own; their logs are in {logs}")
    async with open_stack(settings, place, say=_say, extra=extra) as stack:
        interruption.at_once = stack.supervisor.kill
        await stack.become_ready(needs_worker=True, tell=_say)
        async with Service(place.url, api_key=key, connector=place.connector(limit=0)) as service:
            await stack.supervisor.beside(bulk.work(service, settings.in_flight))


class BulkRun:
    """The lines of one file on their way through a service."""

    def __init__(self, folder: RunFolder, ledger: Ledger, found: Survey) -> None:
        self._folder, self._ledger, self._found = folder, ledger, found
        self._n_done_before = ledger.tally.done
        self._live_tokens = 0
        """Generated for lines that have not ended: counted here until their record is."""
        self._generated_before, self._prompt_before = ledger.tally.generated_tokens, ledger.tally.prompt_tokens
        self._wall_s = 0.0
        self.has_asked = False
        """Whether there may be jobs that only this run knows."""
        self._display: Display | None = None

    async def work(self, service: Service, in_flight: int) -> None:
        """Ask for every line that has no record yet, at most `in_flight` at a time, and keep the records."""
        started = time.monotonic()
        self.has_asked = True
        if self._n_done_before:
            _say(f"going on: {self._n_done_before} of {self._found.n_lines} lines are done")
        self._display = _display(self._found.n_lines)
        try:
            async with shown(self._display, self._looker(service)), self._synced():
                await self._ask_all(service, in_flight)
        finally:
            self._wall_s += time.monotonic() - started
        if not self._ledger.is_complete:
            raise InputChanged(f"{self._folder.source} changed while it was read; --restart starts over")

    def close_display(self) -> None:
        """Have the display end where it is: what is said next stands below it."""
        if self._display is not None:
            self._display.close()

    def summary(self) -> str:
        tally = self._ledger.tally
        lines = _lines(tally.done)
        if self._n_done_before:
            lines += f" ({self._n_done_before} of them in an earlier run)"
        failed = f"{tally.failed} failed" if tally.failed else "none failed"
        tokens = f"{tally.prompt_tokens:,} prompt and {tally.generated_tokens:,} generated tokens"
        speed = ""
        if self._wall_s > 0:
            kind, n_tokens = "generated", tally.generated_tokens - self._generated_before
            if not n_tokens:  # embeddings, or scores
                kind, n_tokens = "prompt", tally.prompt_tokens - self._prompt_before
            speed = f"\n{n_tokens / self._wall_s:.0f} {kind} tokens/s, {duration(self._wall_s)}"
        failures = ""
        with contextlib.suppress(OSError):  # the input may be gone by now; the results are good without
            failures = "".join(f"\n  {text}" for text in self._failures())
        if failures and (n_more := tally.failed - len(tally.failures)):
            failures += f"\n  and {n_more} more in {self._folder.output}"
        return f"{lines}, {failed}; {tokens}{failures}{speed}\nresults: {self._folder.output}"

    def _failures(self) -> Iterator[str]:
        """The first lines that failed, as a person finds them in the file."""
        failures = self._ledger.tally.failures
        if not failures:
            return
        for line in read_lines(self._folder.source, limit=self._found.n_bytes):
            if failure := failures.get(line.index):
                name = f" (custom_id {failure.custom_id})" if failure.custom_id is not None else ""
                yield f"line {line.number}{name}: {failure.reason}"
            if line.index >= max(failures):
                return

    async def _ask_all(self, service: Service, in_flight: int) -> None:
        room = asyncio.Semaphore(in_flight)

        async def answer(line: Line) -> None:
            try:
                self._ledger.put(line.index, await self._answer(service, line))
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                async for line in self._asks():
                    await room.acquire()
                    group.create_task(answer(line))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None  # the first stopped the others

    async def _asks(self) -> AsyncIterator[Line]:
        """The lines without a record. Those that cannot be asked get theirs here."""
        check = LineChecker()
        for line in read_lines(self._folder.source, limit=self._found.n_bytes):
            if line.index % 64 == 0:
                await asyncio.sleep(0)  # many lines may be skipped; the loop has others to serve
            checked = check(line)  # also those with a record: a later line may have the same custom_id
            if self._ledger.has(line.index):
                continue
            match checked:
                case BadLine():
                    subject = bad_subject_of(checked, self._folder.run_id)
                    record = unanswered(subject, code=checked.code, message=checked.message)
                    self._ledger.put(line.index, record)
                case Line():
                    yield checked

    async def _answer(self, service: Service, line: Line) -> bytes:
        key = idempotency_key(self._folder.run_id, line)
        subject = subject_of(line, key)
        for _ in range(TRIES_OF_A_LOST_JOB):
            job = await service.ask(key, line.url, line.body)
            if isinstance(job, Refusal):
                return answered(subject, status=job.status, request_id=job.request_id, body=written(job.body))
            ended = await self._wait(service, job.id)
            if ended is not None:
                return _record(subject, ended)
        message = "the queue lost the job again and again"
        return unanswered(subject, code="job_lost", message=message)

    async def _wait(self, service: Service, job_id: str) -> JobView | None:
        seen = 0

        def count() -> None:
            nonlocal seen
            seen += 1
            self._live_tokens += 1

        try:
            return await service.wait(job_id, on_token=count)
        finally:
            self._live_tokens -= seen

    def _tokens(self) -> int:
        """Generated tokens; for a file that generates nothing, prompt tokens."""
        tally = self._ledger.tally
        return tally.generated_tokens + self._live_tokens or tally.prompt_tokens

    def _looker(self, service: Service) -> Callable[[], Snapshot]:
        meter = Meter(self._found.n_lines)

        def look() -> Snapshot:
            tally = self._ledger.tally
            return meter.note(tally.done, tally.failed, self._tokens(), service.trouble)

        return look

    @asynccontextmanager
    async def _synced(self) -> AsyncIterator[None]:
        """Have the disk hold the records, about once a second."""

        async def keep() -> None:
            while True:
                await asyncio.sleep(SYNC_S)
                await self._ledger.sync()

        keeper = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper


def _record(line: Subject, job: JobView) -> bytes:
    if job.status == "succeeded":
        return answered(line, status=200, request_id=job.id, body=written(job.result))
    error = job.error if isinstance(job.error, dict) else {"message": f"the job {job.status}"}
    if job.status == "failed":
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return answered(line, status=status, request_id=job.id, body=written({"error": error}))
    return unanswered(line, code=f"batch_{job.status}", message=str(error.get("message")))


def _display(n_lines: int) -> Display:
    console = Console(stderr=True)
    return BarDisplay(console, total=n_lines) if console.is_terminal else PlainDisplay(_say_plain)


def _allow_many_connections(in_flight: int) -> None:
    """Each job in flight is a connection here and in an API of our own, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = in_flight * 2 + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # then fewer fit, and the calls are made again
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _lines(count: int) -> str:
    return f"{count} line{'s' * (count != 1)}"


def _say(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


def _say_plain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
