from __future__ import annotations

import pytest

from shared.batches import Segment
from shared.bus.batchrecord import read_segment, write_segment


@pytest.mark.parametrize("mark", ["", "0123abcd"])
def test_a_segment_is_read_as_it_was_written(mark: str) -> None:
    segment = Segment(number=7, mark=mark, n_output=1, output_bytes=2, n_error=3, error_bytes=4)
    assert read_segment(7, write_segment(segment).encode()) == segment
