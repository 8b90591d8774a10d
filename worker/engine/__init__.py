"""Many sequences on one model, decoded as one batch.

Tasks go in from any thread and events come out through one callback per step. Knows no asyncio, no queue, no JSON.
"""

from worker.engine.adapters import Adapters, Defaults
from worker.engine.config import EngineConfig
from worker.engine.constraint import Grammar, Grammars
from worker.engine.embedding.inputs import InputRules
from worker.engine.engine import Engine, EngineEvent, OnEvents
from worker.engine.llama import (
    FillTokens,
    LoadAbandoned,
    LoadFailed,
    Model,
    ModelFacts,
    Pixels,
    apply_builtin_template,
    builtin_templates,
)
from worker.engine.snapshot import BatchSnapshot, EngineSnapshot, SlotSnapshot, Stuck
from worker.engine.task import (
    DropState,
    EmbedTask,
    GenerateTask,
    PutState,
    SequenceKey,
    SlotState,
    SlotTask,
    TakeState,
    Task,
)
from worker.engine.vision import TooManyRows, Vision
from worker.engine.vision.images import IMAGE_MARK, ImageRows, Picture, Placed

__all__ = [
    "IMAGE_MARK",
    "Adapters",
    "BatchSnapshot",
    "Defaults",
    "DropState",
    "EmbedTask",
    "Engine",
    "EngineConfig",
    "EngineEvent",
    "EngineSnapshot",
    "FillTokens",
    "GenerateTask",
    "Grammar",
    "Grammars",
    "ImageRows",
    "InputRules",
    "LoadAbandoned",
    "LoadFailed",
    "Model",
    "ModelFacts",
    "OnEvents",
    "Picture",
    "Pixels",
    "Placed",
    "PutState",
    "SequenceKey",
    "SlotSnapshot",
    "SlotState",
    "SlotTask",
    "Stuck",
    "TakeState",
    "Task",
    "TooManyRows",
    "Vision",
    "apply_builtin_template",
    "builtin_templates",
]
