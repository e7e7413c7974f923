"""Drawing tokens from logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyopt.distribution import Distribution, apply_by_sorting, apply_distribution
from polyopt.engines.drawing import _draw_by_torch, draw, uniforms_of


@pytest.mark.parametrize("start", [0, 1, 4, 7, 30])
def test_uniforms_from_the_middle_are_those_of_the_whole_stream(start: int) -> None:
    whole = np.random.Generator(np.random.Philox(5)).random(40)
    assert (uniforms_of(5, start, 40 - start) == whole[start:]).all()


@pytest.mark.parametrize("vocabulary", [2, 100, 128, 129, 1000])
def test_the_extreme_draws_give_the_first_and_last_possible_token(vocabulary: int) -> None:
    logits = torch.zeros(2, vocabulary)
    logits[:, 0] = logits[:, -1] = float("-inf")
    logits[:, 1] = 1.0
    if vocabulary == 2:
        logits[:, 0] = 0.0
    drawn = draw(logits, np.array([0.0, 1 - 2**-53]), [Distribution()] * 2, entropy=False)
    assert drawn.tokens.tolist() == ([0, 1] if vocabulary == 2 else [1, vocabulary - 2])


def test_rows_keep_their_own_distributions() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    kinds = [Distribution(), Distribution(0.0), Distribution(0.5), Distribution()]
    uniforms = np.array([0.1, 0.2, 0.3, 0.4])
    together = draw(logits, uniforms, kinds, entropy=True)
    for i, kind in enumerate(kinds):
        alone = draw(logits[i : i + 1], uniforms[i : i + 1], [kind], entropy=True)
        assert alone.tokens[0] == together.tokens[i]
        assert alone.logp[0] == together.logp[i]
        assert alone.entropy is not None
        assert together.entropy is not None
        assert alone.entropy[0] == together.entropy[i]


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(top_p=0.5),
        Distribution(temperature=0.7, top_k=400, top_p=0.9),
        Distribution(top_p=0.95, min_p=0.01),
        Distribution(top_k=20, min_p=0.1),
    ],
)
def test_truncation_without_a_full_sort_keeps_the_same_tokens(
    spread: float, distribution: Distribution
) -> None:
    logits = torch.randn(6, 2000, generator=torch.Generator().manual_seed(1)) * spread
    torch.testing.assert_close(
        apply_distribution(logits, distribution), apply_by_sorting(logits, distribution)
    )


@pytest.mark.parametrize("vocabulary", [5, 256, 1000, 49152])
@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(),
        Distribution(0.0),
        Distribution(0.6),
        Distribution(1.7, top_k=3),
        Distribution(0.7, top_p=0.8, min_p=0.01),
        Distribution(0.0, top_k=2),
    ],
)
def test_draws_equal_those_of_the_obvious_way(vocabulary: int, distribution: Distribution) -> None:
    noise = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(50, vocabulary, generator=noise)
    logits[:, vocabulary // 2] = float("-inf")
    uniforms = np.random.Generator(np.random.Philox(3)).random(50)
    drawn = draw(logits, uniforms, [distribution] * 50, entropy=True)
    plain = _draw_by_torch(logits, torch.from_numpy(uniforms), distribution, True)
    assert drawn.tokens.tolist() == plain.tokens.tolist()
    torch.testing.assert_close(drawn.logp, plain.logp, rtol=1e-5, atol=1e-5)
    assert drawn.entropy is not None
    assert plain.entropy is not None
    torch.testing.assert_close(drawn.entropy, plain.entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = torch.zeros(3, 300)
    logits[1, 290] = bad
    with pytest.raises(FloatingPointError, match="1 of 3 rows"):
        draw(logits, np.array([0.1, 0.5, 0.9]), [Distribution()] * 3, entropy=False)
