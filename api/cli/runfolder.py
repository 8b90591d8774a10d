"""What is kept of a run beside its output: which input and model it began with, what it asked a service for, its spool,
its logs, the data of a stack of its own.

One folder an output file, in the user's state folder, locked while a run is at work. Knows nothing of what is run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from api.cli.batchfile import Survey
from api.cli.spool import Ledger, sync_folder
from api.cli.state import make_folder
from shared.settings import WorkerSettings
from shared.wire import Wire


class BadOutput(Exception):
    """The output cannot be written, or is not this run's. The message is one sentence."""


class InputChanged(Exception):
    """The input is not what the run began with. The message is one sentence."""


class ModelChanged(Exception):
    """The model is not the one that the run began with. The message is one sentence."""


class Phase(StrEnum):
    RUNNING = "running"
    FINISHING = "finishing"  # all records are in `.part`; it may be renamed already
    COMPLETE = "complete"


class RunModel(Wire):
    """The model of a stack of one's own. The jobs that wait in the run's server are for it alone."""

    path: str
    """Or whatever else names it, behind `flag`."""
    flag: str = "-m"
    alias: str = ""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """As it is found from any folder."""
        assert settings.origin is not None, "a stack of its own has a model"
        flag, text = settings.origin
        is_path = flag == "-m" and text != "demo"
        path = os.path.normpath(Path(text).absolute()) if is_path else text
        return cls(path=path, flag=flag, alias=next(iter(settings.names), ""))


class Order(Wire):
    """Some of the lines, left with a service as one batch."""

    file_id: str
    batch_id: str | None = None
    """None until the service is known to have made it."""
    window: str
    """The span of time that it was asked to be done in."""
    start: int
    """Index of the first of its lines."""
    stop: int
    """Behind the last of them."""
    n_before: int
    """Records that there were before it gave any."""


class RunState(Wire):
    run_id: str
    input_sha256: str
    input: str = ""
    """Its path, for people."""
    model: RunModel | None = None
    """None until a stack of its own was wanted: a service has its model."""
    phase: Phase = Phase.RUNNING
    failed: int = 0
    """Lines that failed, once the run is past `RUNNING`."""
    n_orders: int = 0
    """That were made and are over: done, or forgotten by their service."""
    order: Order | None = None
    abandoned: Order | None = None
    """Of an earlier run with the same output, that was told to start over."""
    spent: tuple[str, ...] = ()
    """Files at the service that nobody needs any more."""


class RunFolder:
    def __init__(self, folder: Path, source: Path, output: Path) -> None:
        self.folder, self.source, self.output = folder, source, output
        self.part = output.with_name(output.name + ".part")
        self.spool = folder / "spool.jsonl"
        self.logs = folder / "logs"
        self.copy = folder / "lines.jsonl"
        """Lines on their way to a service."""
        self.valkey = folder / "valkey"
        self.files = folder / "files"
        self._state_file = folder / "run.json"
        self._state: RunState | None = None
        self._replaced: RunState | None = None
        self._is_new = False

    @classmethod
    @contextmanager
    def open(cls, state: Path, source: Path, output: Path) -> Iterator[Self]:
        """The folder of the run that writes `output`. Raises BadOutput when it is in use or the path is no good."""
        output = Path(os.path.realpath(output))
        _check_output(source, output)
        name = hashlib.sha256(os.fsencode(output)).hexdigest()[:16]
        run = cls(make_folder(state / "runs" / name), source, output)
        with (run.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadOutput(f"another slotstream run is writing {output} just now") from None
            yield run

    @property
    def run_id(self) -> str:
        return self._begun.run_id

    @property
    def n_failed(self) -> int:
        """Lines that failed in a run that is complete."""
        return self._begun.failed

    @property
    def input_name(self) -> str:
        """Of the file that it began with."""
        return Path(self._begun.input).name

    @property
    def order(self) -> Order | None:
        """That is not over."""
        return self._begun.order

    @property
    def next_order(self) -> str:
        """A name for the next one: the same until that is over, and no other's ever."""
        return f"{self.run_id}-{self._begun.n_orders}"

    @property
    def abandoned(self) -> Order | None:
        return self._begun.abandoned

    @property
    def spent(self) -> tuple[str, ...]:
        return self._begun.spent

    @property
    def is_first_order(self) -> bool:
        """Whether none was over before the one that is not."""
        return self._begun.n_orders == 0

    @property
    def has_asked(self) -> bool:
        """Whether an order was made, whatever became of it."""
        return self.order is not None or self._begun.n_orders > 0

    @property
    def is_new(self) -> bool:
        """Whether it was begun just now, not taken up."""
        return self._is_new

    @property
    def _begun(self) -> RunState:
        assert self._state is not None, "not begun"
        return self._state

    def begin(self, found: Survey, *, is_restart: bool, model: RunModel | None = None) -> bool:
        """Take up the run, or begin it. False when it is complete: there is nothing to do.

        `model` is that of a stack of its own. Raises InputChanged, ModelChanged, and BadOutput when the output is
        something else's or cannot be written.
        """
        earlier = None if is_restart else self._load()
        if earlier is not None and earlier.phase is not Phase.RUNNING and not self.part.exists():
            if self.output.exists():
                self._check_same(earlier, found, model)
                self._save(earlier.model_copy(update={"phase": Phase.COMPLETE}))
                self.tidy()
                return False
            earlier = None  # its results were taken elsewhere: the same command means a new run
        if earlier is not None:
            self._check_same(earlier, found, model)
            self._save(earlier.model_copy(update={"model": earlier.model or model}))
        else:
            self._begin_anew(found, model, may_replace=is_restart)
        self._check_writable()
        return True

    def keep(self, order: Order) -> None:
        """Remember what a service was asked for."""
        self._save(self._begun.model_copy(update={"order": order}))

    def end_order(self, *spent: str) -> None:
        """It is over; `spent` are files at the service that were for it alone."""
        state = self._begun
        fresh = {"order": None, "n_orders": state.n_orders + 1, "spent": (*state.spent, *spent)}
        self._save(state.model_copy(update=fresh))

    def end_abandoned(self) -> None:
        """Its service was told, so that nobody can take it up again."""
        self._replaced = None
        self._save(self._begun.model_copy(update={"abandoned": None}))

    def forget(self) -> None:
        """As if it had not been begun just now; nothing may have been asked yet. Logs stay: they may say why.

        A run that was taken up is kept.
        """
        if not self._is_new:
            return
        self._drop_progress()
        old = self._replaced
        if old is not None and (old.order is not None or (old.phase is Phase.COMPLETE and self.output.exists())):
            self._save(old)
        else:
            self._state_file.unlink(missing_ok=True)

    def publish(self, ledger: Ledger) -> None:
        """Turn the complete `.part` into the output."""
        self._save(self._begun.model_copy(update={"phase": Phase.FINISHING, "failed": ledger.tally.failed}))
        ledger.publish(self.output)
        self._save(self._begun.model_copy(update={"phase": Phase.COMPLETE}))

    def tidy(self) -> None:
        """Drop what is no longer needed. Logs stay when lines failed: they may say why."""
        for old in (self.spool, self.copy):
            old.unlink(missing_ok=True)
        for folder in (self.valkey, self.files):
            shutil.rmtree(folder, ignore_errors=True)
        if not self.n_failed:
            shutil.rmtree(self.logs, ignore_errors=True)

    def fresh_logs(self) -> Path:
        """The folder for logs, without those of an earlier start."""
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir()
        return self.logs

    def _begin_anew(self, found: Survey, model: RunModel | None, *, may_replace: bool) -> None:
        if not may_replace and self.output.exists():
            raise BadOutput(f"{self.output} exists already; --restart replaces it")
        self._is_new, self._replaced = True, self._load()
        is_unknown = self._replaced is None and self.part.exists() and self.part.stat().st_size > 0
        if not may_replace and is_unknown:
            raise BadOutput(f"{self.part} is of a run that is not known here; --restart replaces it")
        # What is old goes before the new state comes: the other way round, a crash in between would mix them.
        self._drop_progress()
        shutil.rmtree(self.logs, ignore_errors=True)
        old = self._replaced
        state = RunState(
            run_id=secrets.token_hex(12),
            input_sha256=found.sha256,
            input=_shown(self.source),
            model=model,
            abandoned=(old.order or old.abandoned) if old else None,
        )
        self._save(state)

    def _drop_progress(self) -> None:
        for old in (self.part, self.spool, self.copy):
            old.unlink(missing_ok=True)
        for folder in (self.valkey, self.files):
            shutil.rmtree(folder, ignore_errors=True)

    def _check_same(self, earlier: RunState, found: Survey, model: RunModel | None) -> None:
        if earlier.input_sha256 != found.sha256:
            if earlier.input not in ("", _shown(self.source)):
                begun_with = f"{self.output} was begun with another file, {earlier.input}"
                raise InputChanged(f"{begun_with}; give that again, or --restart starts over")
            raise InputChanged(
                f"{self.source} has changed since the run for {self.output} began; --restart starts over"
            )
        begun = earlier.model
        if model is None or begun is None or begun == model:
            return
        name, flags = f"model {begun.path}", f"{begun.flag} {begun.path}"
        if begun.alias:
            name, flags = f"{name} and alias {begun.alias}", f"{flags} -a {begun.alias}"
        elif model.alias:
            name, flags = f"{name} and no alias", f"{flags} without an alias"
        raise ModelChanged(f"{self.output} was begun with {name}; give {flags} again, or --restart starts over")

    def _check_writable(self) -> None:
        try:
            self.part.open("ab").close()
        except OSError as error:
            raise BadOutput(f"cannot write {self.part}: {(error.strerror or '').lower()}") from None

    def _load(self) -> RunState | None:
        try:
            return RunState.from_json(self._state_file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _save(self, state: RunState) -> None:
        fresh = self._state_file.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(state.to_json())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state_file)
        sync_folder(self.folder)
        self._state = state


def _shown(path: Path) -> str:
    """As it is found from any folder, and can be written as JSON."""
    return os.fsencode(os.path.normpath(path.absolute())).decode(errors="replace")


def _check_output(source: Path, output: Path) -> None:
    if output.is_dir():
        raise BadOutput(f"{output} is a folder, not a file")
    if output.exists() and not output.is_file():
        raise BadOutput(f"{output} is not a regular file")
    if not output.parent.is_dir():
        raise BadOutput(f"cannot write {output}: there is no folder {output.parent}")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise BadOutput(f"cannot write {output}: the folder {output.parent} is not writable")
    original = Path(os.path.realpath(source))
    if original in (output, output.with_name(output.name + ".part")):
        raise BadOutput(f"the output would overwrite the input {source}")
