"""Makes the parts of an engine from its settings and its model.

Knows which part wants what; nothing of how they work together.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from shared.settings import LEAST_CTX_SLOT
from worker.engine.admission import Admission
from worker.engine.cells import Cells
from worker.engine.config import EngineConfig
from worker.engine.constraint import Grammars, Masks
from worker.engine.embedding import Embedder
from worker.engine.embedding.inputs import InputRules
from worker.engine.lanes import Ageing
from worker.engine.launch import Launcher
from worker.engine.llama import (
    Context,
    ContextParams,
    LoadFailed,
    LoadWatch,
    Model,
    OpenContext,
    Projector,
    max_sequences,
)
from worker.engine.overflow import FullContext
from worker.engine.vision import Vision

MOST_IDLE = 64
"""Sequences that stay in the cache beside those that run, where few can run. Each is looked at when a new one comes."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of. Whoever had them assembled frees the model, the contexts and the helpers."""

    model: Model
    context: Context
    cells: Cells
    launcher: Launcher
    admission: Admission
    embedder: Embedder
    grammars: Grammars
    vision: Vision | None
    n_ctx_slot: int
    """Longest that a sequence can get, in tokens."""


def assemble(config: EngineConfig, open_context: OpenContext, watch: LoadWatch, resources: ExitStack) -> Parts:
    """Load the model and make all that works with it; `resources` frees it. LoadFailed, LoadAbandoned."""
    model = resources.enter_context(Model.load(config.model, config.load, watch))
    if config.adapters:
        model.load_adapters([adapter.path for adapter in config.adapters])
    n_ctx = config.n_ctx or model.facts.n_ctx_train
    n_ctx_slot = min(config.n_ctx_slot or n_ctx // config.n_slots, n_ctx)
    _check(config, n_ctx_slot)
    n_ids = _n_ids(config, model)
    input_rules = InputRules.of(model.facts, config, n_ctx_slot)
    embedder = resources.enter_context(Embedder(model, config, input_rules, open_context))
    if config.embeds_only or not model.facts.is_causal:
        context, n_ctx_slot = embedder.open(), input_rules.n_most  # nothing is generated: it is there to refuse it
    else:
        context = resources.enter_context(open_context(model, ContextParams.to_generate(config, n_ctx, n_ids)))
    if config.grouping.n > 1 and not context.can_shift:
        raise LoadFailed("--grp-attn-n is more than 1, and what this model has in its cache cannot be moved")
    context.adapt(tuple(adapter.scale for adapter in config.adapters))
    if config.warms_up:
        context.warm_up()
    vision = None
    if config.projector is not None and context.can_generate:
        vision = resources.enter_context(Vision(Projector.load(model, config.projector), context.n_ubatch))
    lexicon = model.lexicon()
    grammars = resources.enter_context(Grammars(lexicon))
    masks = resources.enter_context(Masks(lexicon, config.n_threads))
    cells = Cells(
        context,
        n_ids,
        n_cells=context.n_cells,
        can_rewind=model.facts.can_rewind,
        can_shift=context.can_shift,
        grouping=config.grouping,
    )
    full_context = FullContext(
        n_ctx_slot,
        shifts=config.context_shift,
        shift_limit=config.shift_limit,
        can_shift=config.grouping.n == 1,
        is_moved=context.can_shift,
        adds_bos=model.facts.adds_bos,
    )
    launcher = Launcher(
        model,
        cells,
        masks,
        full_context,
        can_generate=context.can_generate,
        grouping=config.grouping,
        n_ubatch=context.n_ubatch,
    )
    admission = Admission(cells, launcher, config.n_slots, Ageing(config.age_s, config.quantum_s))
    return Parts(model, context, cells, launcher, admission, embedder, grammars, vision, n_ctx_slot)


def _check(config: EngineConfig, n_ctx_slot: int) -> None:
    if config.n_slots > max_sequences():
        raise LoadFailed(f"--parallel is {config.n_slots}, and llama.cpp takes at most {max_sequences()}")
    if config.n_batch < config.n_slots:
        raise LoadFailed(f"--batch-size is {config.n_batch}, and must be at least --parallel, {config.n_slots}")
    if n_ctx_slot < LEAST_CTX_SLOT:
        raise LoadFailed(
            f"the context leaves {n_ctx_slot} tokens to each of {config.n_slots} slots: raise -c or lower -np"
        )


def _n_ids(config: EngineConfig, model: Model) -> int:
    """Of sequences in the cache: for those that run, for as many that are parked, and for those that stay for the sake
    of others. Each costs a row of logits; where a state cannot be cut, it would cost the memory of a whole one."""
    n_others = max(config.n_slots, MOST_IDLE) if model.facts.can_rewind else 0
    return min(config.n_slots + n_others, max_sequences())
