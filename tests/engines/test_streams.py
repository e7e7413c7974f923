"""The draws of many requests at once."""

from __future__ import annotations

import numpy as np
import pytest

from polyopt.engines.drawing import uniforms_of
from polyopt.engines.streams import philox_keys, uniforms_of_all

SEEDS = [0, 1, 5, 2**32 - 1, 2**32, 2**63 - 1, 2**64 + 3, 2**128 - 1]


def test_keys_are_those_that_numpy_makes_of_the_seeds() -> None:
    for seed, key in zip(SEEDS, philox_keys(SEEDS), strict=True):
        assert (key == np.random.SeedSequence(seed).generate_state(2, np.uint64)).all()


@pytest.mark.parametrize("more", [[], [2**128, 3**200]])
def test_each_request_has_its_own_stream_however_many_are_drawn(more: list[int]) -> None:
    seeds = [*SEEDS, *more]
    starts = [0, 3, 4, 7, 0, 30, 1, 2, 5, 6][: len(seeds)]
    counts = [5, 0, 40, 1, 6, 3, 2, 4, 8, 7][: len(seeds)]
    found = uniforms_of_all(seeds, starts, counts)
    assert found.shape == (len(seeds), 40)
    for row, seed, start, count in zip(found, seeds, starts, counts, strict=True):
        assert (row[:count] == uniforms_of(seed, start, count)).all()
        assert not row[count:].any()


def test_a_negative_seed_is_refused_as_numpy_does() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        uniforms_of_all([3, -1], [0, 0], [2, 2])
