"""Update rules around a proximal policy, with passes, with a penalty that adapts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import UnnormalizedForwardKL
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ImportanceWeighted
from polyopt.objectives.trust_regions import StepDivergence
from polyopt.updates.averaging import MovingAverage, soup
from polyopt.updates.fix_up import FixUp
from polyopt.updates.natural_gradient import (
    TrustRegionStep,
    TrustRegionUpdate,
    conjugate_gradient,
    curvature,
)
from polyopt.updates.proximal import AveragedProximal, LowProbabilityFirst

PENALISED = Objective(
    surrogate=ImportanceWeighted(), trust_region=(StepDivergence(UnnormalizedForwardKL(), 0.0),)
)


@dataclass
class Table:
    """A softmax over four actions as a policy, trained by SGD: a learner without a model."""

    objective: Objective = PENALISED
    theta: Tensor = field(default_factory=lambda: torch.tensor([0.3, -0.2, 0.1, 0.0]).double())
    lr: float = 0.5
    grad: Tensor | None = None
    seen: list[Batch] = field(default_factory=list)
    versions: int = 0

    def evaluate(self, batch: Batch, theta: Tensor) -> Tensor:
        return theta.log_softmax(-1)[batch["tokens"]]

    def gradient(self, batch: Batch) -> dict[str, float]:
        self.seen.append(batch)
        leaf = self.theta.clone().requires_grad_()
        loss = self.objective(Evaluation(self.evaluate(batch, leaf)), batch).loss
        (self.grad,) = torch.autograd.grad(loss, leaf)
        return {"loss": float(loss.detach())}

    def apply(self) -> dict[str, float]:
        assert self.grad is not None
        self.theta = self.theta - self.lr * self.grad
        return {}

    def weights(self) -> list[Tensor]:
        return [self.theta.clone()]

    def interpolate(self, start: Sequence[Tensor], share: float) -> None:
        self.theta = start[0] + share * (self.theta - start[0])

    def place(self, weights: Sequence[Tensor]) -> None:
        self.theta, self.versions = weights[0].clone(), self.versions + 1

    def gradients(self) -> list[Tensor]:
        assert self.grad is not None
        return [self.grad]

    def log_probs(self, batch: Batch) -> Tensor:
        return self.evaluate(batch, self.theta)


def table_batch(learner: Table, rows: int = 64) -> Batch:
    """On-policy draws; action 2 is the good one."""
    draw = torch.Generator().manual_seed(0)
    tokens = learner.theta.softmax(-1).multinomial(rows, replacement=True, generator=draw)[:, None]
    good = (tokens == 2).double()
    batch = Batch.of(tokens=tokens, advantages=good - good.mean(), rewards=good[:, 0])
    return batch.replace(logp_old=learner.log_probs(batch))


DRAWS = np.random.default_rng(0)


def test_an_average_of_constant_weights_is_constant() -> None:
    average = MovingAverage(0.9)
    average.start([torch.ones(3)])
    for _ in range(5):
        average.update([torch.ones(3)])
    torch.testing.assert_close(average.average[0], torch.ones(3))
    assert average.total == pytest.approx(sum(0.9**k for k in range(6)))


def test_the_proximal_policy_is_the_average_and_the_weights_end_where_the_steps_lead() -> None:
    plain, averaged = Table(), Table()
    batch = table_batch(plain)
    rule = AveragedProximal(minibatches=1, epochs=3, decay=0.5)
    rule(averaged, batch, DRAWS)
    first, second, third = averaged.seen
    torch.testing.assert_close(first["logp_old"], batch["logp_old"])
    assert not torch.allclose(second["logp_old"], batch["logp_old"])
    assert not torch.allclose(third["logp_old"], second["logp_old"])
    torch.testing.assert_close(rule.average.average[0].shape, averaged.theta.shape)
    behind = (averaged.theta - rule.average.average[0]).norm()
    assert 0 < float(behind) < float((averaged.theta - plain.theta).norm())


def test_the_proximal_average_survives_a_checkpoint() -> None:
    first, second = AveragedProximal(), AveragedProximal()
    first(Table(), table_batch(Table()), DRAWS)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.average.average, first.average.average)
    assert second.average.total == first.average.total


def test_each_token_has_credit_in_exactly_one_of_two_passes() -> None:
    learner = Table()
    batch = table_batch(learner)
    LowProbabilityFirst(0.25)(learner, batch, DRAWS)
    low, high = learner.seen
    torch.testing.assert_close(low["advantages"] + high["advantages"], batch["advantages"])
    both = low["penalty_weights"] + high["penalty_weights"]
    torch.testing.assert_close(both, torch.ones_like(both))
    assert (batch["logp_old"].exp()[low["penalty_weights"] > 0] < 0.25).all()
    assert (low.loss_mask == batch.loss_mask).all()  # denominators count every token


def test_after_the_fix_up_no_token_is_outside_the_trust_region() -> None:
    learner, rule = Table(lr=4.0), FixUp(limit=0.02, beta=1.0, most_fix_ups=500, minibatches=1)
    batch = table_batch(learner)
    steps = rule(learner, batch, DRAWS)
    assert len(steps) > 1
    assert float(rule.divergence(learner, batch).max()) <= 0.02


def test_without_a_violation_there_is_no_fix_up() -> None:
    learner, rule = Table(lr=1e-3), FixUp(minibatches=2)
    assert len(rule(learner, table_batch(learner), DRAWS)) == 2
    assert rule.weight.value < rule.beta  # far inside the region the penalty weakens


def test_the_penalty_weight_grows_outside_and_never_falls_below_0() -> None:
    rule = FixUp(limit=0.1, beta=0.005, beta_lr=0.01)
    rule.weight.adapt(0.0)
    assert rule.weight.value == 0.0
    for _ in range(3):
        rule.weight.adapt(10.0)
    assert rule.weight.value > 0
    other = FixUp()
    other.load_state_dict(rule.state_dict())
    assert other.weight.value == rule.weight.value


def test_conjugate_gradient_solves_in_as_many_steps_as_dimensions() -> None:
    draw = torch.Generator().manual_seed(4)
    root = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    matrix, target = root @ root.T + torch.eye(6), torch.randn(6, generator=draw).double()
    found = conjugate_gradient(lambda v: matrix @ v, target, iterations=6, tolerance=0.0)
    torch.testing.assert_close(matrix @ found, target, atol=1e-7, rtol=1e-7)


def test_curvature_of_a_quadratic_is_its_matrix() -> None:
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    product = curvature(lambda w: w @ matrix @ w / 2, torch.ones(2).double(), damping=0.1)
    vector = torch.tensor([1.0, -3.0]).double()
    torch.testing.assert_close(product(vector), matrix @ vector + 0.1 * vector)


def test_a_trust_region_update_improves_within_its_ball_and_counts_a_version() -> None:
    learner = Table()
    batch = table_batch(learner)
    rule = TrustRegionUpdate(TrustRegionStep(max_kl=0.01, damping=0.01))
    (metrics,) = rule(learner, batch, DRAWS)
    assert metrics["trpo/backtracks"] >= 0
    assert learner.versions == 1
    assert 0 < rule.divergence(learner, batch) <= 0.01
    assert learner.gradient(batch)["loss"] < metrics["loss"]


def test_differences_of_gradients_agree_with_second_derivatives() -> None:
    learner = Table()
    batch = table_batch(learner)
    vector = torch.tensor([0.5, -1.0, 2.0, 0.3]).double()

    def mean_divergence(theta: Tensor) -> Tensor:
        return UnnormalizedForwardKL()(learner.evaluate(batch, theta) - batch["logp_old"]).mean()

    exact = curvature(mean_divergence, learner.theta, damping=0.0)(vector)
    rule = TrustRegionUpdate(probe=1e-5)
    found = rule.curvature(learner, batch, learner.weights(), vector)
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=1e-4)


def test_without_credit_the_policy_stays_where_it_is() -> None:
    learner = Table()
    batch = table_batch(learner)
    start = learner.theta.clone()
    still = batch.replace(advantages=torch.zeros_like(batch["advantages"]))
    (metrics,) = TrustRegionUpdate()(learner, still, DRAWS)
    assert metrics["trpo/backtracks"] == -1
    torch.testing.assert_close(learner.theta, start)


def test_a_soup_of_models_that_differ_is_refused() -> None:
    one = {"a": torch.ones(2), "steps": torch.tensor(3)}
    mixed = soup(one, {"a": torch.zeros(2), "steps": torch.tensor(9)}, 0.25)
    assert mixed["a"].tolist() == [0.25, 0.25]
    assert int(mixed["steps"]) == 3
    with pytest.raises(ValueError, match="'b'"):
        soup(one, {"b": torch.ones(2)})
