"""polyopt's ideas against the losses and advantages of TRL's own trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polyopt.ideas import build
from tests.peers import trl_trainers as trl
from tests.peers.accumulation import accumulated
from tests.peers.agreement import error, same, same_loss
from tests.peers.random_batches import EQUAL, SEEDS, Sample, sample


@dataclass(frozen=True)
class Pair:
    """An expression of polyopt's and the TRL loss that it should equal.

    Attributes:
        idea: Expression.
        kind: Scripted trainer.
        theirs: Attributes of the trainer.
        ours: Numbers set in the recipe, by path.
    """

    idea: str
    kind: type
    theirs: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.idea


GSPO = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
GMPO = {"epsilon_low": 0.4, "epsilon_high": 0.4}
PAIRS = [
    Pair("grpo", trl.ScriptedGRPO, {"loss_type": "grpo", "beta": 0.04}),
    Pair("dr-grpo", trl.ScriptedGRPO, {"loss_type": "dr_grpo"}),
    Pair("dapo", trl.ScriptedGRPO, {"loss_type": "dapo", "epsilon_high": 0.28}),
    Pair("gspo", trl.ScriptedGRPO, {**GSPO, "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    Pair("cispo", trl.ScriptedGRPO, {"loss_type": "cispo", "epsilon_high": 1.2}),
    Pair("gmpo", trl.scripted_gmpo(), GMPO),
    Pair("gmpo+k3", trl.scripted_gmpo(), {**GMPO, "beta": 0.04}),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_accumulated_loss_and_gradient_equal_those_of_trl_on_the_whole_batch(
    pair: Pair, count: int, seed: int
) -> None:
    recipe = build(pair.idea, pair.ours)
    made = sample(seed, EQUAL).credited(recipe)
    theirs = trl.loss(pair.kind, made, **pair.theirs)
    same_loss("TRL", pair.idea, accumulated(recipe.objective, made, count), theirs)


@pytest.mark.parametrize("count", [2, 7])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_losses_that_trl_accumulates_over_equal_micro_batches_equal_ours(
    pair: Pair, count: int
) -> None:
    recipe = build(pair.idea, pair.ours)
    made = sample(0, EQUAL).credited(recipe)
    theirs = trl.loss(pair.kind, made, count, **pair.theirs)
    same_loss("TRL", pair.idea, accumulated(recipe.objective, made, count), theirs)


EPS = {"advantages.estimator.eps": 1e-4}
ESTIMATORS = {
    "grpo": (trl.ScriptedGRPO, {}, EPS),
    "dr-grpo": (trl.ScriptedGRPO, {"scale_rewards": "none"}, {}),
    "lite-ppo": (trl.ScriptedGRPO, {"scale_rewards": "batch"}, EPS),
    "rloo": (trl.ScriptedRLOO, {}, {}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unscored", [0, 3])
@pytest.mark.parametrize("idea", ESTIMATORS)
def test_advantages_equal_those_of_trl_and_unscored_rollouts_get_none(
    idea: str, unscored: int, seed: int
) -> None:
    kind, options, numbers = ESTIMATORS[idea]
    batch = sample(seed, EQUAL).batch
    rewards = batch.rewards.clone()
    rewards[:unscored] = float("nan")
    batch = build(idea, numbers).advantages(batch.replace(rewards=rewards))
    theirs = trl.advantages(kind, batch, **options)
    same("TRL", idea, "advantages", batch["advantages"][:, 0], theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_with_kl_in_the_reward_has_the_advantages_of_trl(seed: int) -> None:
    recipe = build("rloo+kl-in-reward", {"divergence-in-reward.coefficient": 0.05})
    made = sample(seed, EQUAL, holes=False)
    ours = made.credited(recipe).batch
    theirs = trl.advantages(trl.ScriptedRLOO, made.batch, beta=0.05)
    same("TRL", "rloo+kl-in-reward", "advantages", ours["advantages"][:, 0], theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_rloo_with_a_clipped_product_ratio_has_the_loss_of_trl(count: int, seed: int) -> None:
    recipe = build(CLIPPED_RLOO, {"objective.surrogate.clip_high": 0.2})
    made = sample(seed, EQUAL, holes=False).credited(recipe)
    theirs = trl.loss(trl.ScriptedRLOO, made)
    same_loss("TRL", CLIPPED_RLOO, accumulated(recipe.objective, made, count), theirs)


CLIPPED_RLOO = "rloo+product-ratio+clip-higher+sequence-mean"


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_has_the_gradient_of_trl_on_policy(seed: int) -> None:
    recipe = build("rloo")
    made = sample(seed, EQUAL, holes=False).credited(recipe).on_policy()
    ours, theirs = accumulated(recipe.objective, made), trl.loss(trl.ScriptedRLOO, made)
    same("TRL", "rloo, on-policy", "gradient", ours.gradient, theirs.gradient)


def test_dapos_overlong_penalty_equals_that_of_trl() -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = torch.arange(1, 21)
    batch = sample(0, (20,)).batch.replace(lengths=lengths, max_tokens=torch.full((20,), 20))
    (shape,) = build("dapo").rewards.shaping
    ours = shape(batch).rewards - batch.rewards
    punish = get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=4)
    theirs = torch.tensor(punish([[0] * int(n) for n in lengths]), dtype=torch.float64)
    same("TRL", "dapo, overlong", "reward", ours, theirs)


# --- where the two differ -----------------------------------------------------------------------


def test_trl_counts_empty_rollouts_in_grpos_mean_and_polyopt_does_not() -> None:
    recipe = build("grpo")
    made = sample(0, EQUAL, empty=4)
    made = made.changed(advantages=torch.ones_like(made.logp) * torch.arange(-14, 14)[:, None])
    theirs = trl.loss(trl.ScriptedGRPO, made, loss_type="grpo", beta=0.04)
    ours = accumulated(recipe.objective, made)
    same("TRL", "grpo * 24/28, empty rollouts", "loss", ours.loss * 24 / 28, theirs.loss)


def test_trl_counts_empty_rollouts_in_dr_grpos_mean_and_so_does_polyopt() -> None:
    recipe = build("dr-grpo")
    made = sample(0, EQUAL, empty=4)
    made = made.changed(advantages=torch.ones_like(made.logp) * torch.arange(-14, 14)[:, None])
    theirs = trl.loss(trl.ScriptedGRPO, made, loss_type="dr_grpo")
    same_loss("TRL", "dr-grpo, empty rollouts", accumulated(recipe.objective, made), theirs)


def test_trl_reads_cispos_bound_as_the_weight_itself_and_polyopt_as_its_excess_over_one() -> None:
    recipe = build("cispo", {"objective.surrogate.clip_high": 4.0})
    made = sample(0, EQUAL)
    made = made.changed(advantages=torch.ones_like(made.logp))
    ours = accumulated(recipe.objective, made)
    theirs = trl.loss(trl.ScriptedGRPO, made, loss_type="cispo", epsilon_high=5.0)
    same_loss("TRL", "cispo, bound 5", ours, theirs)


def test_trls_bnpo_loss_depends_on_how_a_batch_is_cut_and_token_mean_does_not() -> None:
    recipe = build("grpo+token-mean", {"objective.kl.coefficient": 0.0})
    made = sample(0, EQUAL).credited(recipe)
    whole = trl.loss(trl.ScriptedGRPO, made, loss_type="bnpo")
    cut = trl.loss(trl.ScriptedGRPO, made, 7, loss_type="bnpo")
    assert error(cut.gradient, whole.gradient) > 0.01
    same_loss("TRL", "grpo+token-mean", accumulated(recipe.objective, made, 7), whole)


def test_trl_adds_one_ten_thousandth_to_the_deviation_and_polyopt_a_millionth() -> None:
    batch = build("grpo").advantages(sample(0, EQUAL).batch)
    theirs = trl.advantages(trl.ScriptedGRPO, batch)
    assert 1e-6 < error(batch["advantages"][:, 0], theirs) < 1e-3


def test_trl_leaves_log_ratios_unbounded_and_polyopt_bounds_them_at_twenty() -> None:
    recipe = build("grpo", {"objective.kl.coefficient": 0.0})
    made = sample(0, EQUAL).changed(advantages=-torch.ones(28, 12, dtype=torch.float64))
    far = Sample(made.batch, made.batch["logp_old"] + 25.0)
    theirs = trl.loss(trl.ScriptedGRPO, far, loss_type="grpo")
    ours = accumulated(recipe.objective, far)
    assert (ours.gradient == 0).all()
    assert theirs.gradient.max() > 1e8
