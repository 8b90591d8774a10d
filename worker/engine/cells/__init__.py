"""What sequences have in the KV cache: whose each cell is, who may have it too, and whose go when they run out.

`cells` decides and does, `account` counts, `resident` is one sequence there, `spans` which of its tokens are an image,
and `eviction` says who is missed the least. Knows nothing of slots, of text or of sampling.
"""

from worker.engine.cells.cells import Cache, Cells, Prefix
from worker.engine.cells.resident import Ids, Resident, Standing

__all__ = ["Cache", "Cells", "Ids", "Prefix", "Resident", "Standing"]
