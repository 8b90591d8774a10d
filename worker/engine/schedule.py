"""What is computed next: a batch, rows of an image or inputs to embed, whose, and how much at once.

They take turns, and so do sets of adapters, one of which a batch has; in all, bulk yields to people as far as its own
turns allow. Decides only, for the decode thread: knows nothing of llama.cpp, cells or text.
"""

from __future__ import annotations

import time

from shared.jobs import Lane
from worker.engine.adapters import Scales
from worker.engine.faults import Trial
from worker.engine.lanes import Ageing, Lanes
from worker.engine.plan import Pace, Plan, Yielding, plan_batch, plan_image, wants_tokens, with_bulk
from worker.engine.sequence import Sequence
from worker.engine.task import EmbedTask
from worker.engine.turns import Turns

HURRY_S = 60.0
"""People come in bursts: for so long after one, decodes stay short for the next."""
PAUSE_S = 0.12
"""So long, and a decode more for each, people with one set of adapters wait for those with others: not yet felt as a
stutter. Of two sets that take turns each computes for as long, of which the switch takes a tenth or less."""
PAUSE_BULK_S = 1.0
"""The same among sets of bulk, when nobody waits."""


class Schedule:
    """Asked once per turn; what it remembers is how the turns before went.

    It is told by turns what each is about: `running` are the sequences that have a slot, `inputs` wait to be embedded,
    and `pace` knows what a decode of the one or the other costs. `ageing` is that of the inputs.

    People wait for people with other adapters as `Turns` has it, and for bulk with others no more than for bulk with
    the same: what is not of their own set has turns of bulk's own, in which it goes alone.
    """

    def __init__(self, n_batch: int, ageing: Ageing, *, has_adapters: bool = False) -> None:
        self._n_batch = self._max_prefill = n_batch
        self._has_adapters = has_adapters
        self._turns_of_people: Turns[Scales] = Turns(PAUSE_S)
        self._turns_of_bulk: Turns[Scales] = Turns(PAUSE_BULK_S)
        self._yielding = Yielding()
        self._embed_yielding = Yielding()
        self._image_yielding = Yielding()
        self._embed_ageing = ageing
        self._has_embedded = self._has_seen_image = False
        self._hurried_until = 0.0

    def plan(self, running: list[Sequence], pace: Pace) -> Plan[Sequence]:
        """What goes into the next decode: tokens and rows of images in turns, when there are both."""
        self._has_embedded = False
        viewer = self._next_viewer(running, pace)
        if viewer is None or self._has_seen_image:
            self._has_seen_image = False
            plan = self._plan_tokens(running, pace)
            if viewer is None or plan.n_tokens:
                return plan
        self._has_seen_image = True
        if viewer.is_bulk:
            self._image_yielding.took_turn()
        else:
            self._yielding.passed()
            self._embed_yielding.passed()
        return plan_image(viewer, self._n_rows(running, pace))

    def _plan_tokens(self, running: list[Sequence], pace: Pace) -> Plan[Sequence]:
        if people := _people(running):
            return self._plan_beside(people, running, pace)
        self._yielding.took_turn()
        bulk = self._whose_turn(running, self._turns_of_bulk)
        n_prefill = self._n_prefill(bulk, pace, is_hurried=self._have_people_come())
        return plan_batch(bulk, self._n_batch, n_prefill)

    def plan_trial(self, trial: Trial[Sequence]) -> Plan[Sequence]:
        """The same after one that failed."""
        members = [sequence for sequence in trial.sequences if sequence.has_slot]
        n_prefill = min(trial.n_prefill, self._max_prefill)
        plan = plan_batch(_like_first(members), self._n_batch, n_prefill)
        viewers = [sequence for sequence in members if sequence.is_at_image and sequence.n_wanted]
        return plan_image(viewers[0], n_prefill) if viewers and not plan.n_tokens else plan

    def decoded(self) -> None:
        """What was planned had room: the next may be as large as any."""
        self._max_prefill = self._n_batch

    def plan_less(self, n_prefill: int) -> None:
        """There was no room for so many tokens of prompts: plan half of them, until a decode succeeds."""
        self._max_prefill = n_prefill // 2

    def hurry(self, at: float) -> None:
        """A person came at that time (monotonic seconds), so that another may well come soon."""
        self._hurried_until = at + HURRY_S

    def is_turn_to_embed(self, inputs: Lanes[EmbedTask], running: list[Sequence], pace: Pace, decode_ms: float) -> bool:
        """In turns with batches, when there is both; but bulk of the one kind waits for people of the other, as far as
        its own turns allow."""
        if not len(inputs):
            return False
        have_people, is_for_people = bool(_people(running)), inputs.count(Lane.INTERACTIVE) > 0
        if have_people and not is_for_people:
            cost_ms = pace.expected_ms(0, min(len(inputs.first(Lane.BULK).tokens), pace.n_batch))
            return self._embed_yielding.is_due(decode_ms, cost_ms)
        if is_for_people and not have_people and running:
            return not self._yielding.is_due()
        return not (running and self._has_embedded)

    def next_to_embed(self, inputs: Lanes[EmbedTask], running: list[Sequence], pace: Pace) -> tuple[Lane, int]:
        """Whose turn it is, and for how many tokens: as many as a prefill could have, but one input at least. Bulk that
        goes before people, or beside them, has one input."""
        now = time.monotonic()
        have_people = bool(_people(running))
        n_tokens = pace.prefill_budget(len(running), is_hurried=self._have_people_come() or have_people)
        if not inputs.count(Lane.INTERACTIVE):
            return Lane.BULK, 1 if have_people else n_tokens
        if self._embed_ageing.is_due(inputs.since(Lane.BULK), now):
            self._embed_ageing.begin(now)
            return Lane.BULK, 1
        return Lane.INTERACTIVE, n_tokens

    def embedded(self, lane: Lane) -> None:
        """A turn of embeddings went by."""
        self._has_embedded = True
        if lane is Lane.INTERACTIVE:
            self._yielding.passed()
        else:
            self._embed_yielding.took_turn()

    def _plan_beside(self, people: list[Sequence], running: list[Sequence], pace: Pace) -> Plan[Sequence]:
        """People first, and of bulk what does not hold them up, beginning with who was served the longest ago."""
        is_streaming = any(sequence.is_generating for sequence in people)
        served = self._whose_turn(people, self._turns_of_people)
        plan = plan_batch(served, self._n_batch, self._n_prefill(served, pace, is_hurried=is_streaming))
        bulk = sorted((sequence for sequence in running if sequence.is_bulk), key=lambda each: each.served_at)
        people_ms = pace.least_ms(len(plan.generating), plan.n_prefill)
        room = self._yielding.room(people_ms, is_awaited=any(sequence.is_awaited for sequence in people))
        if room.must_serve and bulk:
            self._yielding.took_turn()
        else:
            self._yielding.passed()
        self._embed_yielding.passed()
        self._image_yielding.passed()
        if self._has_adapters:
            plan, bulk = _of_one_set(plan, bulk, must_serve=room.must_serve)
        return with_bulk(plan, bulk, room, pace, n_batch=self._n_batch, n_prefill=self._max_prefill)

    def _next_viewer(self, running: list[Sequence], pace: Pace) -> Sequence | None:
        """Whose image is next: a person's; that of bulk beside people only when it is due. Of several, his who was
        served the longest ago."""
        viewers = [sequence for sequence in running if sequence.is_at_image and sequence.n_wanted]
        if not viewers:
            return None
        viewer = min(viewers, key=lambda each: (each.is_bulk, each.served_at))
        if not viewer.is_bulk or not (people := _people(running)):
            return viewer
        people_ms = pace.least_ms(sum(sequence.is_generating for sequence in people), 0)
        cost_ms = pace.expected_ms(0, plan_image(viewer, self._n_rows(running, pace)).n_prefill)
        return viewer if self._image_yielding.is_due(people_ms, cost_ms) else None

    def _n_rows(self, running: list[Sequence], pace: Pace) -> int:
        """Of an image, where it can be decoded in parts."""
        return self._n_prefill([], pace, is_hurried=bool(_people(running)) or self._have_people_come())

    def _whose_turn(self, sequences: list[Sequence], turns: Turns[Scales]) -> list[Sequence]:
        """Those with the adapters whose turn it is."""
        if not self._has_adapters:
            return sequences
        wanting = dict.fromkeys(sequence.scales for sequence in sequences if wants_tokens(sequence))
        scales = turns.next(wanting, time.monotonic()) if wanting else None
        return [sequence for sequence in sequences if sequence.scales == scales]

    def _n_prefill(self, sequences: list[Sequence], pace: Pace, *, is_hurried: bool) -> int:
        n_generating = sum(sequence.is_generating for sequence in sequences)
        return min(pace.prefill_budget(n_generating, is_hurried=is_hurried), self._max_prefill)

    def _have_people_come(self) -> bool:
        """Lately, so that another may well come soon."""
        return time.monotonic() < self._hurried_until


def _people(running: list[Sequence]) -> list[Sequence]:
    return [sequence for sequence in running if not sequence.is_bulk]


def _of_one_set(
    plan: Plan[Sequence], bulk: list[Sequence], *, must_serve: bool
) -> tuple[Plan[Sequence], list[Sequence]]:
    """People's plan, and of bulk what has the same adapters. But bulk with others that must be served now goes without
    people, since it cannot go with them."""
    wanting = [sequence for sequence in bulk if wants_tokens(sequence)]
    person = next((sequence for sequence, _ in plan.shares), None)
    if person is None or (must_serve and wanting and wanting[0].scales != person.scales):
        return Plan(), _like_first(wanting)
    return plan, [sequence for sequence in wanting if sequence.scales == person.scales]


def _like_first(sequences: list[Sequence]) -> list[Sequence]:
    """Those with the same adapters as the first."""
    return [sequence for sequence in sequences if sequence.scales == sequences[0].scales]
