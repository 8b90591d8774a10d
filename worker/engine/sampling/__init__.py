"""Chooses the next token of every sequence, as llama.cpp's sampler chain would, for all rows at once and in numpy.

```
 rows of logits
   -> biases, constraint, penalties    bias, penalties, dry          a few tokens of each row
   -> candidates                       gather, pool                  what the first step may keep, in order
   -> the other steps                  steps (parameters say which)  rows with the same steps together
   -> mirostat, adaptive               feedback                      what remembers
   -> one token                        noise                         counted by seed and position
```

`choice` calls them in this order, for what a `sampler` is to each sequence; `scores` says how likely tokens were.
What depends on a request alone is made of it once, before the engine has it: `bias`, `breakers`, `repeats`.
"""

from worker.engine.sampling.bias import NO_BIAS, Bias
from worker.engine.sampling.breakers import NO_BREAKERS, Breakers
from worker.engine.sampling.choice import Choice, candidates, choose
from worker.engine.sampling.pool import NO_TOKEN, Floats, Ids, Pool
from worker.engine.sampling.repeats import Repeats
from worker.engine.sampling.sampler import Constraining, Sampler, Setting, Telling
from worker.engine.sampling.scores import Scores

__all__ = [
    "NO_BIAS",
    "NO_BREAKERS",
    "NO_TOKEN",
    "Bias",
    "Breakers",
    "Choice",
    "Constraining",
    "Floats",
    "Ids",
    "Pool",
    "Repeats",
    "Sampler",
    "Scores",
    "Setting",
    "Telling",
    "candidates",
    "choose",
]
