"""`slotstream run IN.jsonl -o OUT.jsonl`: a bulk file from start to finish, resumable at any moment.

This file is the story; its nouns are beside it: the file (`batchfile`), durable progress (`spool`, `runfolder`), the
jobs API (`service`), a stack of its own (`stack`) and the display (`progress`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from api.cli.batchfile import BadInput, Survey, survey
from api.cli.batchservice import BatchService
from api.cli.bulkrun import USUAL, BulkRun, Most, Refused, Window, lines_of
from api.cli.progress import BarDisplay, Display, PlainDisplay
from api.cli.runfolder import BadOutput, InputChanged, ModelChanged, RunFolder, RunModel
from api.cli.service import ServiceLost
from api.cli.signals import Interruption
from api.cli.spool import ForeignPart, Ledger
from api.cli.stack import Place, check_model, check_slot_folder, config_of, free_port, open_stack
from api.cli.state import state_folder
from api.cli.supervisor import ChildRefused
from api.keys import keys_of
from api.schemas.window import window_s
from shared.modelfile import LoadFailed
from shared.settings import CONFIG_VARIABLE, ApiSettings, ConfigError, RunSettings
from shared.settings.flags import flag_of

PROG = "slotstream run"
EXIT_SOME_FAILED, EXIT_NOT_RUN = 1, 2
MODEL_FIELDS = ("model", "hf_repo", "model_url")
OWN_HOST = "127.0.0.1"
NO_API_KEY = ("SLOTSTREAM_API_KEY", ",")
"""A list of no keys. An empty variable would count as none, and a key in the settings file would be in force."""


def run(argv: Sequence[str]) -> int:
    settings = RunSettings.from_command_line(
        argv, prog=PROG, description="Run a file of OpenAI batch lines; run it again to go on after a stop."
    )
    try:
        _check(settings, argv)
        return _run(settings, config_of(argv))
    except (LoadFailed, ConfigError) as error:
        _say(settings.blame(str(error)))
    except (BadInput, BadOutput, InputChanged, ModelChanged, ChildRefused, ServiceLost, Refused) as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    return EXIT_NOT_RUN


def _check(settings: RunSettings, argv: Sequence[str]) -> None:
    """Raise ConfigError for what cannot work, above all unless there is one model to ask: in a file, or a service's."""
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
    try:
        window_s(settings.window)
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from None


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
            failed = f", {lines_of(folder.n_failed)} failed" if folder.n_failed else ""
            _say(f"{settings.output} is complete already{failed}; --restart does it again")
            return EXIT_SOME_FAILED if folder.n_failed else 0
        with _ledger(folder, found) as ledger:
            window = Window(settings.window, is_chosen="window" in settings.model_fields_set)
            bulk = BulkRun(folder, ledger, found, window, most=_most(settings), say=_say)
            if ledger.is_complete:
                bulk.publish()
            else:
                exit_code = _do_what_is_left(settings, config, folder, bulk)
                if exit_code is not None and not bulk.is_published:
                    _say(f"stopped; {_how_to_go_on(settings, bulk)}")
                    return exit_code
        folder.tidy()
    print(bulk.summary(), flush=True)
    return EXIT_SOME_FAILED if ledger.tally.failed else 0


def _most(settings: RunSettings) -> Most:
    """Of what a batch may have; a service knows its own limits, and refuses what is beyond them."""
    if settings.url:
        return USUAL
    return Most(settings.max_batch_lines, int(min(settings.max_batch_mb, settings.max_file_mb) * 1_000_000))


def _do_what_is_left(settings: RunSettings, config: dict[str, str], folder: RunFolder, bulk: BulkRun) -> int | None:
    """Returns the exit code of an interruption, None when all is done. What asked for nothing leaves nothing."""
    try:
        return asyncio.run(_work(settings, config, folder, bulk))
    finally:
        if not bulk.has_asked and not bulk.is_published:
            folder.forget()


def _how_to_go_on(settings: RunSettings, bulk: BulkRun) -> str:
    if settings.restart and not bulk.has_asked:
        return "nothing was begun"
    where = "the service goes on with the batch, and " if settings.url and bulk.has_asked else ""
    return f"{where}the same command {'without --restart goes on' if settings.restart else 'goes on from here'}"


@contextmanager
def _ledger(folder: RunFolder, found: Survey) -> Iterator[Ledger]:
    try:
        with Ledger(folder.part, folder.spool, n_lines=found.n_lines) as ledger:
            yield ledger
    except ForeignPart:
        raise BadOutput(f"{folder.part} has more records than the input has lines; --restart starts over") from None


async def _work(settings: RunSettings, config: dict[str, str], folder: RunFolder, bulk: BulkRun) -> int | None:
    """With a service, or a stack of its own; returns the exit code of an interruption."""

    def on_stop(number: signal.Signals) -> None:
        bulk.close_display()
        _say(f"{number.name}: stopping (again: at once)")

    with Interruption(on_first=on_stop) as interruption:
        if settings.url:
            key = settings.api_key.get_secret_value() if settings.api_key else None
            async with BatchService(settings.url, api_key=key) as service:
                await _work_with(service, folder, bulk)
        else:
            await _work_on_own_stack(settings, config, folder, bulk, interruption)
    return interruption.exit_code


async def _work_with(service: BatchService, folder: RunFolder, bulk: BulkRun) -> None:
    await service.check()
    await bulk.work(service, _display(bulk.n_lines))
    bulk.publish()
    for file_id in folder.spent:
        await service.forget(file_id)


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
    if settings.redis_url is not None and not settings.store_url.get_secret_value():
        extra["SLOTSTREAM_STORE_URL"] = ""  # who else works on that Redis looks for files where it is usual
    _say(f"starting a worker, an API and a queue of its own; their logs are in {logs}")
    async with open_stack(settings, place, say=_say, extra=extra) as stack:
        interruption.at_once = stack.supervisor.leave
        await stack.become_ready(needs_worker=True, tell=_say)
        async with BatchService(place.url, api_key=key, connector=place.connector()) as service:
            await stack.supervisor.beside(_work_with(service, folder, bulk))


def _display(n_lines: int) -> Display:
    console = Console(stderr=True)
    return BarDisplay(console, total=n_lines) if console.is_terminal else PlainDisplay(_say_plain)


def _say(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


def _say_plain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
