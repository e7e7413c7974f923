"""polyopt's ideas against verl's own advantage estimators and policy losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polyopt.ideas import build
from polyopt.objectives.covariance import ClipCov
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.ratios import token_ratio
from tests.peers import verl_functions as verl
from tests.peers.accumulation import accumulated
from tests.peers.agreement import TOLERANCE, error, same, same_loss
from tests.peers.random_batches import EQUAL, SEEDS, WIDTH, Sample, rewards_at_end, sample

TOKEN_MEAN, SEQUENCE_MEAN = "token-mean", "seq-mean-token-mean"
CONSTANT = "seq-mean-token-sum-norm"
NO_DUAL_CLIP = {"clip_ratio_c": verl.NO_DUAL_CLIP}


@dataclass(frozen=True)
class Pair:
    """An expression of polyopt's and the verl loss that it should equal.

    Attributes:
        idea: Expression.
        loss: Name in verl's registry of policy losses.
        mode: verl's aggregation.
        ours: Numbers set in the recipe, by path.
        theirs: Numbers set in verl's configuration.
        kl: Coefficient and kind of verl's KL loss.
    """

    idea: str
    loss: str
    mode: str
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    kl: tuple[float, str] | None = None

    def __str__(self) -> str:
        return f"{self.idea} = {self.loss}"


def clip(low: float, high: float, **more: float) -> dict[str, float]:
    """verl's clip range."""
    return {"clip_ratio_low": low, "clip_ratio_high": high, **more}


KL_COV = {"kl_cov_ratio": 0.05, "ppo_kl_coef": 0.7}
OUR_KL_COV = {"kl-cov.share": 0.05, "kl-cov.coefficient": 0.7}
LENGTH = {"constant-length.length": WIDTH}
PAIRS = [
    Pair("grpo", "vanilla", SEQUENCE_MEAN, {}, NO_DUAL_CLIP, (0.04, "k3")),
    Pair("grpo+k1", "vanilla", SEQUENCE_MEAN, {}, NO_DUAL_CLIP, (0.001, "k1")),
    Pair("grpo+k2", "vanilla", SEQUENCE_MEAN, {}, NO_DUAL_CLIP, (0.001, "k2")),
    Pair("grpo+kl-abs", "vanilla", SEQUENCE_MEAN, {}, NO_DUAL_CLIP, (0.001, "abs")),
    Pair("grpo+k3-plus", "vanilla", SEQUENCE_MEAN, {}, NO_DUAL_CLIP, (0.001, "k3+")),
    Pair("grpo+dual-clip", "vanilla", SEQUENCE_MEAN, {}, {}, (0.04, "k3")),
    Pair("dr-grpo", "vanilla", CONSTANT, LENGTH, {"loss_scale_factor": WIDTH, **NO_DUAL_CLIP}),
    Pair("dapo", "vanilla", TOKEN_MEAN, {}, clip(0.2, 0.28, **NO_DUAL_CLIP)),
    Pair("gspo", "gspo", SEQUENCE_MEAN, {}, clip(3e-4, 4e-4)),
    Pair("gspo-token", "gspo", SEQUENCE_MEAN, {}, clip(3e-4, 4e-4)),
    Pair("cispo", "cispo", TOKEN_MEAN, {"objective.surrogate.clip_low": 0.2}, clip(0.2, 0.2)),
    Pair("rloo", "gpg", "seq-mean-token-sum"),
    Pair("reinforce++", "vanilla", TOKEN_MEAN, {}, NO_DUAL_CLIP),
    Pair("reinforce++-baseline", "vanilla", TOKEN_MEAN, {}, NO_DUAL_CLIP, (0.001, "k2")),
    Pair("opo", "gpg", TOKEN_MEAN),
    Pair("gpg-verl", "gpg", SEQUENCE_MEAN),
    Pair("gpg-verl+token-mean", "gpg", TOKEN_MEAN),
    Pair("kl-cov", "kl_cov", TOKEN_MEAN, OUR_KL_COV, KL_COV),
    Pair("gmpo", "geo_mean", "", {}, clip(0.4, 0.4)),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_accumulated_loss_and_gradient_equal_those_of_verl_on_the_whole_batch(
    pair: Pair, count: int, seed: int
) -> None:
    recipe = build(pair.idea, pair.ours)
    made = sample(seed).credited(recipe)
    theirs = verl.loss(pair.loss, made, pair.mode, pair.kl, **pair.theirs)
    same_loss("verl", pair.idea, accumulated(recipe.objective, made, count), theirs)


ESTIMATORS = {
    "grpo": ("grpo", {}),
    "dr-grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "rloo": ("rloo", {}),
    "opo": ("opo", {}),
    "gpg-verl": ("gpg", {}),
    "reinforce++-baseline": ("reinforce_plus_plus_baseline", {}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("idea", ESTIMATORS)
def test_advantages_of_unequal_groups_equal_those_of_verl(idea: str, seed: int) -> None:
    name, options = ESTIMATORS[idea]
    ours = sample(seed).credited(build(idea)).batch
    same("verl", idea, "advantages", ours["advantages"], verl.advantages(name, ours, **options))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus_advantages_with_kl_in_the_reward_equal_those_of_verl(
    gamma: float, seed: int
) -> None:
    made = sample(seed)
    ours = made.credited(build("reinforce++", {"advantages.estimator.gamma": gamma})).batch
    logps = made.batch["logp_old"], made.batch["logp_ref"]
    dense = verl.core_algos.compute_rewards(rewards_at_end(made.batch), *logps, 0.01)
    given = made.batch.replace(token_rewards=dense * made.batch.mask)
    config = verl.core_algos.AlgoConfig(gamma=gamma)
    theirs = verl.advantages("reinforce_plus_plus", given, config=config)
    same("verl", "reinforce++", "advantages", ours["advantages"], theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_vectorised_estimators_of_verl_give_a_group_of_one_no_credit_as_polyopt_does(
    seed: int,
) -> None:
    ours = sample(seed, (1, 3, 4)).credited(build("rloo")).batch
    same("verl", "rloo", "advantages", ours["advantages"], verl.advantages("rloo_vectorized", ours))
    assert (ours["advantages"][0] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("idea", ["grpo", "rloo", "opo"])
def test_lone_rollouts_keep_their_reward_in_verl_and_with_lone_in_polyopt(
    idea: str, seed: int
) -> None:
    recipe = build(idea, {"advantages.estimator.lone": 1.0})
    ours = sample(seed, (1, 3, 4)).credited(recipe).batch
    same("verl", f"{idea}, lone=1", "advantages", ours["advantages"], verl.advantages(idea, ours))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("share", [1.0, 0.02, 2e-4])
def test_clip_cov_silencing_the_tokens_that_verl_drew_has_its_loss_and_gradient(
    share: float, count: int, seed: int
) -> None:
    numbers = {"clip-cov.share": share, "clip-cov.low": 0.3, "clip-cov.high": 2.0}
    recipe = build("clip-cov", {**numbers, **OUR_CLIP})
    made = with_verls_draws(sample(seed).credited(recipe), recipe.objective.trust_region[0], seed)
    ours = accumulated(recipe.objective, made, count)
    torch.manual_seed(seed)
    theirs = verl.loss(
        "clip_cov",
        made,
        TOKEN_MEAN,
        clip_cov_ratio=share,
        clip_cov_lb=0.3,
        clip_cov_ub=2.0,
        **clip(0.2, 0.28),
    )
    same_loss("verl", "clip-cov", ours, theirs)


OUR_CLIP = {"objective.surrogate.clip_low": 0.2, "objective.surrogate.clip_high": 0.28}


def with_verls_draws(made: Sample, part: Any, seed: int) -> Sample:
    """The sample with a column `draws` that orders candidates as verl's shuffle will."""
    assert isinstance(part, ClipCov)
    objective = build("clip-cov", OUR_CLIP).objective
    evaluation = Evaluation(made.logp)
    log_ratio = token_ratio(made.logp, made.batch)
    token_loss = objective.surrogate(log_ratio, evaluation, made.batch)
    among = part.candidates(token_loss, made.logp, made.batch).nonzero()  # type: ignore[arg-type]
    assert len(among) > 2
    torch.manual_seed(seed)
    shuffled = among[torch.randperm(len(among))]
    draws = torch.full_like(made.logp, math.inf)
    draws[shuffled[:, 0], shuffled[:, 1]] = torch.arange(len(among), dtype=draws.dtype)
    return made.changed(draws=draws)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize(
    "pair",
    [p for p in PAIRS if p.loss in ("vanilla", "gspo", "cispo", "gpg") and not p.kl],
    ids=str,
)
def test_losses_that_verl_accumulates_over_equal_micro_batches_equal_ours(
    pair: Pair, count: int
) -> None:
    recipe = build(pair.idea, pair.ours)
    made = sample(1, EQUAL).credited(recipe)
    theirs = verl.accumulated_loss(pair.loss, made, pair.mode, count, **pair.theirs)
    same_loss("verl", pair.idea, accumulated(recipe.objective, made, count), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_token_follows_credit_that_differs_within_a_rollout_as_verl_does(seed: int) -> None:
    recipe, made = build("gspo-token"), sample(seed)
    made = made.changed(advantages=torch.randn_like(made.logp) * made.batch.mask)
    theirs = verl.loss("gspo", made, SEQUENCE_MEAN, **clip(3e-4, 4e-4))
    same_loss("verl", "gspo-token, token credit", accumulated(recipe.objective, made, 2), theirs)


@pytest.mark.parametrize("idea", ["rloo", "opo", "gpg-verl"])
def test_score_function_gradients_equal_those_of_verls_clipped_loss_on_policy(idea: str) -> None:
    recipe = build(f"{idea}+token-mean")
    made = sample(2).credited(recipe).on_policy()
    ours, theirs = accumulated(recipe.objective, made), verl.loss("vanilla", made, TOKEN_MEAN)
    same("verl", f"{idea}, on-policy", "gradient", ours.gradient, theirs.gradient)


def test_log_ratios_beyond_twenty_are_bounded_alike_in_both() -> None:
    recipe = build("grpo", {"objective.kl.coefficient": 0.0})
    made = far_sample(25.0).credited(recipe)
    theirs = verl.loss("vanilla", made, SEQUENCE_MEAN, clip_ratio_c=1e12)
    same_loss("verl", "grpo, log-ratio 25", accumulated(recipe.objective, made), theirs)


# --- where the two differ -----------------------------------------------------------------------


def test_verl_adds_a_dual_clip_to_grpo_that_polyopt_has_only_on_request() -> None:
    recipe = build("grpo", {"objective.kl.coefficient": 0.0})
    made = far_sample(1.5).credited(recipe)
    theirs = verl.loss("vanilla", made, SEQUENCE_MEAN)
    assert error(accumulated(recipe.objective, made).gradient, theirs.gradient) > 0.1
    with_dual_clip = build("grpo+dual-clip", {"objective.kl.coefficient": 0.0})
    same_loss("verl", "grpo+dual-clip", accumulated(with_dual_clip.objective, made), theirs)


def test_verl_bounds_k3_at_ten_and_polyopt_does_with_a_bound() -> None:
    recipe = build("grpo")
    made = sample(0).credited(recipe)
    made = made.changed(logp_ref=made.batch["logp_ref"] + 2.0)
    theirs = verl.loss("vanilla", made, SEQUENCE_MEAN, (0.04, "k3"), **NO_DUAL_CLIP)
    assert error(accumulated(recipe.objective, made).gradient, theirs.gradient) > 0.1
    bounded = build("grpo", {"objective.kl.bound": 10.0})
    same_loss("verl", "grpo, kl.bound=10", accumulated(bounded.objective, made), theirs)


def test_verl_leaves_empty_rollouts_out_of_dr_grpos_count_and_polyopt_counts_them() -> None:
    recipe = build("dr-grpo", LENGTH)
    made = sample(0, empty=4).credited(recipe)
    theirs = verl.loss("vanilla", made, CONSTANT, loss_scale_factor=WIDTH, **NO_DUAL_CLIP)
    ours = accumulated(recipe.objective, made)
    same("verl", "dr-grpo * 28/24, empty rollouts", "loss", ours.loss * 28 / 24, theirs.loss)


def test_verl_divides_dr_grpos_loss_by_the_padded_width_and_polyopt_by_the_completion_limit() -> (
    None
):
    made = sample(0).credited(build("dr-grpo"))
    made = made.changed(max_tokens=torch.full((28,), 2 * WIDTH))
    theirs = verl.loss("vanilla", made, CONSTANT, **NO_DUAL_CLIP)
    ours = accumulated(build("dr-grpo").objective, made)
    same("verl", "dr-grpo * 2, width", "loss", ours.loss * 2, theirs.loss)


def test_verl_counts_empty_rollouts_in_gmpos_mean_and_polyopt_does_not() -> None:
    recipe = build("gmpo")
    made = sample(0, empty=4).credited(recipe)
    theirs = verl.loss("geo_mean", made, "", **clip(0.4, 0.4))
    ours = accumulated(recipe.objective, made)
    same("verl", "gmpo * 24/28, empty rollouts", "loss", ours.loss * 24 / 28, theirs.loss)


def test_verl_clips_cispos_weight_from_below_too_and_polyopt_only_from_above() -> None:
    recipe = build("cispo")
    made = sample(0).credited(recipe)
    theirs = verl.loss("cispo", made, TOKEN_MEAN, **clip(0.2, 0.2))
    assert error(accumulated(recipe.objective, made).gradient, theirs.gradient) > 1e-3
    unbounded = verl.loss("cispo", made, TOKEN_MEAN, **clip(1.0, 0.2))
    same_loss("verl", "cispo, clip_ratio_low=1", accumulated(recipe.objective, made), unbounded)


def test_verl_scales_gpg_by_rewarded_rollouts_and_polyopt_by_groups_with_signal() -> None:
    # 7 of 28 rollouts have a reward; 3 of 7 groups have right and wrong ones
    rewards = torch.tensor([1.0, 0, 0, 0] * 3 + [1.0] * 4 + [0.0] * 12, dtype=torch.float64)
    batch = sample(0, EQUAL).batch.replace(rewards=rewards)
    ours = build("gpg", {"signal-share.eps": 0.0}).advantages(batch)["advantages"]
    theirs = verl.advantages("gpg", batch)
    same("verl", "gpg * (28/7) / (7/3)", "advantages", ours / (7 / 3) * (28 / 7), theirs)


def test_verl_takes_covariances_of_each_micro_batch_and_polyopt_of_the_whole_batch() -> None:
    recipe = build("kl-cov", OUR_KL_COV)
    made = sample(0, EQUAL).credited(recipe)
    whole = verl.loss("kl_cov", made, TOKEN_MEAN, **KL_COV)
    in_pieces = verl.accumulated_loss("kl_cov", made, TOKEN_MEAN, 7, **KL_COV)
    assert error(in_pieces.gradient, whole.gradient) > 0.01
    same_loss("verl", "kl-cov", accumulated(recipe.objective, made, 7), whole)


def far_sample(distance: float) -> Sample:
    """A sample in which about half of the log-ratios are as large as that."""
    made = sample(0)
    return Sample(made.batch, made.logp + distance * (made.logp < -1.6))


@pytest.mark.parametrize(
    ("idea", "path", "value"),
    [
        ("grpo", "objective.surrogate.clip_low", 0.19),
        ("grpo", "objective.surrogate.clip_high", 0.21),
        ("gspo", "objective.surrogate.clip_low", 6e-4),
        ("gspo", "objective.surrogate.clip_high", 8e-4),
        ("gmpo", "objective.ratio.clip_low", 0.39),
        ("gmpo", "objective.ratio.clip_high", 0.41),
        ("cispo", "objective.surrogate.clip_high", 0.21),
    ],
)
def test_the_samples_reach_every_clip_so_a_shifted_one_would_show(
    idea: str, path: str, value: float
) -> None:
    right, wrong = build(idea), build(idea, {path: value})
    errors = []
    for seed in SEEDS:
        made = sample(seed).credited(right)
        found = accumulated(wrong.objective, made), accumulated(right.objective, made)
        errors.append(error(found[0].gradient, found[1].gradient))
    assert max(errors) > TOLERANCE


def test_the_yardstick_sees_an_error_of_ten_to_the_minus_five() -> None:
    values = torch.linspace(0.1, 1, 5, dtype=torch.float64)
    assert error(values + 1e-5, values) > TOLERANCE
