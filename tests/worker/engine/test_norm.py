import numpy as np
import pytest

from worker.engine.embedding.norm import normalized

VECTOR = np.array([3.0, -4.0, 0.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (-1, [3, -4, 0]),
        (0, [24570, -32760, 0]),
        (1, [3 / 7, -4 / 7, 0]),
        (2, [0.6, -0.8, 0]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3), 0]),
        (100, [0.75, -1, 0]),
    ],
)
def test_a_vector_is_divided_as_it_is_asked_for(norm: int, expected: list[float]) -> None:
    assert normalized(VECTOR, norm) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 100])
def test_zero_stays_zero(norm: int) -> None:
    assert (normalized(np.zeros(3, dtype=np.float32), norm) == 0).all()


@pytest.mark.parametrize("norm", [0, 1, 2, 100])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_no_power_is_too_small_or_too_great(norm: int, scale: float) -> None:
    assert normalized(VECTOR * np.float32(scale), norm) == pytest.approx(normalized(VECTOR, norm), rel=1e-5)
