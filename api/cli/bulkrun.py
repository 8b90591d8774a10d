"""The lines of one file on their way through a service: left with it as a batch, and their records kept as they come.

An *order* is such a batch. Its lines are the first that have no record yet, as many as a batch may have; so a file of
any size is a row of orders, and what a service forgets is ordered again. Each step is written down once it is known to
be done (`runfolder`), and can be done twice: a run that was killed at any moment finds what it had begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, NamedTuple, NoReturn

from api.cli.batchfile import BadInput, Survey, fingerprint
from api.cli.batchservice import BatchService, BatchView, Kind, NoEvents, Standing, Upload
from api.cli.places import Places, refused, subject_of
from api.cli.progress import Display, Meter, Snapshot, duration, shown
from api.cli.runfolder import InputChanged, Order, RunFolder
from api.cli.service import Pause, Refusal, ServiceLost
from api.cli.spool import Ledger
from api.lines.reading import BadLine, Line, LineChecker, RawLine, read_lines
from api.lines.record import unanswered
from shared.batches import ANY_ENDPOINT

SYNC_S = 1.0

TRIES_OF_A_LOST_BATCH = 5
LOOKS_AT_NOTHING = 4
"""After so many in a row a batch is gone that was there: some services know a new one only after a moment."""

OTHERS_WINDOW = "24h"
"""The one that OpenAI knows."""


class Refused(Exception):
    """The service does not take the file. The message is one sentence."""


class Most(NamedTuple):
    """Of what a batch may have."""

    n_lines: int
    n_bytes: int


USUAL = Most(50_000, 200_000_000)
"""What OpenAI takes, and a slotstream unless it is told otherwise."""


class Window(NamedTuple):
    """The span of time in which a batch is to be done, as text."""

    text: str
    is_chosen: bool
    """Somebody asked for just this one."""


class BulkRun:
    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        found: Survey,
        window: Window,
        *,
        most: Most = USUAL,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._ledger, self._found, self._window = folder, ledger, found, window
        self._most, self._say = most, say
        self._n_done_before = ledger.tally.done
        self._generated_before, self._prompt_before = ledger.tally.generated_tokens, ledger.tally.prompt_tokens
        self._wall_s = 0.0
        self._display: Display | None = None
        self._places = Places(folder.run_id)
        """Of the lines of the order."""
        self._standing: Standing | None = None
        """How the service says that the order stands."""
        self._stage = ""
        self._has_missed = False
        """The service went on while no run listened: what it says of that at once tells nothing of its speed."""
        self._is_refused = False
        self.is_published = False

    @property
    def n_lines(self) -> int:
        return self._found.n_lines

    @property
    def has_asked(self) -> bool:
        """Whether a service may have something that only this run knows."""
        return self._folder.has_asked and not self._is_refused

    async def work(self, service: BatchService, display: Display) -> None:
        """See to it that every line has a record. Raises ServiceLost, Refused, BadInput and InputChanged."""
        started = time.monotonic()
        self._display = display
        if self._n_done_before:
            self._say(f"going on: {self._n_done_before} of {self._found.n_lines} lines are done")
        try:
            async with shown(display, self._looker(service)), self._synced():
                await self._work(service, await service.recognise())
        finally:
            self._wall_s += time.monotonic() - started

    def publish(self) -> None:
        """Turn the records into the output."""
        self._folder.publish(self._ledger)
        self.is_published = True

    def close_display(self) -> None:
        """Have the display end where it is: what is said next stands below it."""
        if self._display is not None:
            self._display.close()

    def summary(self) -> str:
        tally = self._ledger.tally
        lines = lines_of(tally.done)
        if self._n_done_before:
            lines += f" ({self._n_done_before} of them in an earlier run)"
        failed = f"{tally.failed} failed" if tally.failed else "none failed"
        tokens = f"{tally.prompt_tokens:,} prompt and {tally.generated_tokens:,} generated tokens"
        speed = ""
        if self._wall_s > 0:
            kind, n_tokens = "generated", tally.generated_tokens - self._generated_before
            if not n_tokens:  # embeddings, or scores
                kind, n_tokens = "prompt", tally.prompt_tokens - self._prompt_before
            rate = "" if self._has_missed else f"{n_tokens / self._wall_s:.0f} {kind} tokens/s, "
            speed = f"\n{rate}{duration(self._wall_s)}"
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

    async def _work(self, service: BatchService, kind: Kind) -> None:
        await self._end_abandoned(service)
        endpoint = ANY_ENDPOINT if kind is Kind.SLOTSTREAM else await self._one_url(service)
        n_lost = 0
        while not self._ledger.is_complete:
            order = await self._order(service, kind)
            if order is None:
                continue  # none of the lines that were left could be asked
            batch = await self._batch(service, order, endpoint)
            ended = await self._follow(service, batch, order) if batch else None
            if ended is None:
                n_lost += 1
                self._lose(order, n_lost)
            else:
                await self._settle(service, order, ended)

    async def _end_abandoned(self, service: BatchService) -> None:
        """What an earlier run has begun and this one starts over is not to be worked on any longer."""
        if (old := self._folder.abandoned) is None:
            return
        if old.batch_id:
            await service.cancel(old.batch_id)
        await service.forget(old.file_id)
        self._folder.end_abandoned()

    async def _order(self, service: BatchService, kind: Kind) -> Order | None:
        """The order that is not over, or a new one; None when nothing can be asked."""
        self._places, self._standing = Places(self._folder.run_id), None
        if order := self._folder.order:
            async for _, line in self._asked(order.start, order.stop):
                self._places.add(line)
            return order
        self._stage = "uploading"
        try:
            order = await self._upload(service, kind)
        finally:
            self._stage = ""
            self._folder.copy.unlink(missing_ok=True)
        if order is not None:
            self._folder.keep(order)
        return order

    async def _upload(self, service: BatchService, kind: Kind) -> Order | None:
        """Leave the next lines with the service as a file."""
        with self._folder.copy.open("wb") as file:
            # Numbers of lines in a slotstream's records are then those of the input.
            copy = Copy(file, self._most, keeps_numbers=kind is Kind.SLOTSTREAM)
            start = stop = 0
            async for raw, line in self._asked():
                if not copy.take(raw):
                    break
                start, stop = (start if len(self._places) else line.index), line.index + 1
                self._places.add(line)
        await self._check_input()
        if not len(self._places):
            return None
        name, is_again = f"slotstream-run-{self._folder.next_order}.jsonl", not self._folder.is_new
        content = Upload(self._folder.copy, name, copy.n_bytes)
        file_id = await service.upload(content, is_again=is_again, on_sent=self._note_sent)
        if isinstance(file_id, Refusal):
            raise Refused(f"{self._folder.source} is not taken: {file_id}")
        n_before = self._ledger.tally.done
        return Order(file_id=file_id, window=self._span(kind), start=start, stop=stop, n_before=n_before)

    async def _batch(self, service: BatchService, order: Order, endpoint: str) -> str | None:
        """The id of the order's batch; None when the service has lost the file meanwhile."""
        if order.batch_id:
            if (begun := await service.look(order.batch_id)) and (counts := begun.request_counts):
                self._has_missed |= order.n_before + counts.completed + counts.failed > self._ledger.tally.done
            return order.batch_id
        fields: dict[str, Any] = {
            "input_file_id": order.file_id,
            "endpoint": endpoint,
            "completion_window": order.window,
        }
        if endpoint == ANY_ENDPOINT:
            fields["metadata"] = {"input": self._folder.input_name[:512]}  # as at first, else it were another batch
        key, is_again = f"run-{self._folder.next_order}", not self._folder.is_new
        batch = await service.create(key, fields, is_again=is_again)
        if isinstance(batch, Refusal):
            if not await service.has_file(order.file_id):
                return None
            await self._refuse(service, order, str(batch))
        self._folder.keep(order.model_copy(update={"batch_id": batch.id}))
        return batch.id

    async def _follow(self, service: BatchService, batch_id: str, order: Order) -> BatchView | None:
        """Keep the records of a batch until it ends; None when the service does not know it (any more)."""

        async def follow(after: int) -> BatchView | None:
            return await service.follow(batch_id, after=after, on_record=self._take, on_standing=self._note_standing)

        # What is here is a beginning of what the service tells, unless a crash has taken something from its middle.
        after = max(0, self._ledger.tally.done - order.n_before)
        try:
            batch = await follow(after)
            if batch is not None and after and self._lacks(order):
                batch = await follow(0)
        except NoEvents:
            batch = await self._poll(service, batch_id)
        return batch

    async def _poll(self, service: BatchService, batch_id: str) -> BatchView | None:
        """The same where records come at the end alone, and out of two files."""
        pause, n_misses = Pause(), 0
        while n_misses < LOOKS_AT_NOTHING:
            batch = await service.look(batch_id)
            n_misses = 0 if batch else n_misses + 1
            if batch and batch.is_ended:
                await self._download(service, batch)
                return batch
            self._standing = batch or self._standing
            await asyncio.sleep(pause.seconds(None))
        return None

    async def _download(self, service: BatchService, batch: BatchView) -> None:
        self._stage = "downloading"
        for file_id in batch.result_files:
            if not await service.lines(file_id, self._take):
                raise ServiceLost(
                    f"the service does not have {file_id}, where results of the batch {batch.id} should be"
                )
        self._stage = ""

    async def _settle(self, service: BatchService, order: Order, batch: BatchView) -> None:
        """The order is over: the lines that got no record from it get theirs here."""
        if self._lacks(order):
            await self._check_input()
            if batch.status == "failed" and not batch.result_files:
                await self._refuse(service, order, batch.why_failed)
            is_cut = batch.status in ("expired", "cancelled")
            code = f"batch_{batch.status}" if is_cut else "job_lost"
            message = f"the batch {batch.status}" + ("" if is_cut else " without a record of this line")
            async for _, line in self._asked(order.start, order.stop):
                subject = subject_of(self._folder.run_id, line.number, line.custom_id)
                self._ledger.put(line.index, unanswered(subject, code=code, message=message))
        await self._ledger.sync()
        self._folder.end_order(order.file_id, *batch.result_files)

    async def _refuse(self, service: BatchService, order: Order, why: str) -> NoReturn:
        """Nothing of the order was run, and nothing of it stays."""
        await service.forget(order.file_id)
        self._is_refused = self._folder.is_first_order
        self._folder.end_order()
        raise Refused(f"{self._folder.source} is not taken as a batch: {why}")

    def _lose(self, order: Order, n_lost: int) -> None:
        self._folder.end_order(order.file_id)
        if n_lost == TRIES_OF_A_LOST_BATCH:
            raise ServiceLost("the service forgot the batch again and again")
        n_left = self._found.n_lines - self._ledger.tally.done
        self._say(f"the service does not know the batch any more; asking again for {lines_of(n_left)}")

    def _lacks(self, order: Order) -> bool:
        return any(not self._ledger.has(index) for index in range(order.start, order.stop))

    async def _asked(self, start: int = 0, stop: int | None = None) -> AsyncIterator[tuple[RawLine, Line]]:
        """The lines without a record. Those that cannot be asked get theirs here."""
        check = LineChecker()
        for raw in read_lines(self._folder.source, limit=self._found.n_bytes):
            if stop is not None and raw.index >= stop:
                return
            if raw.index % 64 == 0:
                await asyncio.sleep(0)  # there may be many; the loop has others to serve
            checked = check(raw)  # also those with a record: a later line may have the same custom_id
            if raw.index < start or self._ledger.has(raw.index):
                continue
            match checked:
                case BadLine():
                    self._ledger.put(raw.index, refused(self._folder.run_id, checked))
                case Line():
                    yield raw, checked

    async def _one_url(self, service: BatchService) -> str:
        """The path that all lines ask. Raises BadInput when they ask several."""
        first: Line | None = None
        check = LineChecker()
        for raw in read_lines(self._folder.source, limit=self._found.n_bytes):
            if raw.index % 64 == 0:
                await asyncio.sleep(0)
            if not isinstance(line := check(raw), Line):
                continue
            first = first or line
            if line.url != first.url:
                raise BadInput(
                    f"{self._folder.source} asks {first.url} in line {first.number} and {line.url} in line"
                    f" {line.number}, and {service.url} takes one path a file"
                )
        if first is None:
            raise InputChanged(f"{self._folder.source} changed while it was read; --restart starts over")
        return first.url

    async def _check_input(self) -> None:
        """Raise InputChanged when the file is not what it was when the run began."""
        n_bytes, sha256 = await asyncio.to_thread(fingerprint, self._folder.source, limit=self._found.n_bytes)
        if (n_bytes, sha256) != (self._found.n_bytes, self._found.sha256):
            raise InputChanged(f"{self._folder.source} changed while it was read; --restart starts over")

    def _span(self, kind: Kind) -> str:
        return self._window.text if kind is Kind.SLOTSTREAM or self._window.is_chosen else OTHERS_WINDOW

    def _take(self, text: bytes) -> None:
        if placed := self._places.place(text):
            self._ledger.put(placed.index, placed.record, placed.outcome)

    def _note_standing(self, standing: Standing) -> None:
        self._standing = standing

    def _note_sent(self, share: float) -> None:
        self._stage = f"uploading, {share:.0%}"

    def _looker(self, service: BatchService) -> Callable[[], Snapshot]:
        meter = Meter(self._found.n_lines)

        def look() -> Snapshot:
            return self._snapshot(meter, service.trouble)

        return look

    def _snapshot(self, meter: Meter, trouble: str | None) -> Snapshot:
        """What the service tells of the order, where that is more than the records that are here."""
        tally, order, standing = self._ledger.tally, self._folder.order, self._standing
        done, failed, tokens = tally.done, tally.failed, tally.generated_tokens or tally.prompt_tokens
        if order and standing and (counts := standing.request_counts):
            done = max(done, order.n_before + counts.completed + counts.failed)
            failed = max(failed, counts.failed)
        snapshot = meter.note(done, failed, tokens, trouble)._replace(stage=self._stage)
        if self._has_missed:
            tokens, snapshot = 0, snapshot._replace(tokens_per_second=None)
        if standing is None:
            return snapshot
        is_last = order is not None and order.stop == self._found.n_lines
        return snapshot._replace(
            tokens_per_second=standing.tokens_per_s or (snapshot.tokens_per_second if tokens else None),
            left_s=standing.eta_s if is_last and standing.eta_s is not None else snapshot.left_s,
        )

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


class Copy:
    """Lines of the input that go to a service, no more than it takes."""

    def __init__(self, file: BinaryIO, most: Most, *, keeps_numbers: bool) -> None:
        """`keeps_numbers`: each line has the number that it has in the input, for what is left out is blank."""
        self._file, self._most = file, most
        self._keeps_numbers = keeps_numbers
        self._n_lines = self.n_bytes = self._n_ends = 0

    def take(self, line: RawLine) -> bool:
        """False when there is no room for it."""
        assert line.text is not None, "a line that can be asked has a text"
        blanks = b"\n" * (line.number - 1 - self._n_ends) if self._keeps_numbers else b""
        n_bytes = self.n_bytes + len(blanks) + len(line.text) + 1
        if self._n_lines and (self._n_lines == self._most.n_lines or n_bytes > self._most.n_bytes):
            return False
        self._file.write(blanks + line.text + b"\n")
        self._n_lines, self.n_bytes, self._n_ends = self._n_lines + 1, n_bytes, line.number
        return True


def lines_of(count: int) -> str:
    return f"{count} line{'s' * (count != 1)}"
