"""Vectors of update rules and of averaged weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyopt import divergences
from polyopt.advantages.token_probability import ProbabilityReweight
from polyopt.batch import Batch
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.regularized import DecoupledClip
from polyopt.objectives.surrogates import ClippedSurrogate, ImportanceWeighted
from polyopt.objectives.trust_regions import squared_step
from polyopt.rewards.shaping import KLInReward
from polyopt.updates.averaging import MovingAverage, soup
from polyopt.updates.fix_up import FixUp, MeanFixUp, Penalised
from polyopt.updates.natural_gradient import TrustRegionStep, curvature
from polyopt.updates.proximal import HighProbabilityFirst, LowProbabilityFirst
from tests.verify.harness import Case, Outputs, loss_and_grad, maps


@dataclasses.dataclass
class _Recorder:
    """A learner that notes the loss and gradient of each batch it is given, and never moves."""

    objective: Objective
    logp: Tensor
    found: list[tuple[Batch, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def gradient(self, batch: Batch) -> dict[str, float]:
        self.found.append((batch, loss_and_grad(self.objective, batch, self.logp)))
        return {}

    def apply(self) -> dict[str, float]:
        return {}


@maps("ar-lopti")
def ar_lopti(case: Case) -> Outputs:
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    clip = ClippedSurrogate(case.param("clip_low"), case.param("clip_high"), case.param("clip_c"))
    objective, eta = Objective(surrogate=clip), case.param("eta")
    advantages = ProbabilityReweight(case.param("alpha"))(batch["advantages"], batch)
    outputs: dict[str, Any] = {"advantages_reweighted": advantages * batch.mask}
    batch = batch.replace(advantages=advantages)
    if eta is None:
        return {**outputs, **loss_and_grad(objective, batch, logp)}
    rule = LowProbabilityFirst(eta) if eta > 0 else HighProbabilityFirst(-eta)
    learner: Any = _Recorder(objective, logp)
    rule(learner, batch, np.random.default_rng(0))
    for name, (seen, found) in zip(("first", "second"), learner.found, strict=True):
        outputs[f"mask_{name}"] = seen["penalty_weights"]
        outputs[f"advantages_{name}"] = seen["advantages"]
        outputs[f"loss_{name}"] = found["loss"]
        outputs[f"grad_logp_{name}"] = found["grad_logp"]
    return outputs


@maps("ppo-ewma")
def ppo_ewma(case: Case) -> Outputs:
    if case.has("params_trajectory"):
        return _moving_average(case)
    eps = case.param("eps_clip")
    part = DecoupledClip(eps or None, case.param("imp_samp_max"))  # 0 is the authors' "no clip"
    objective = Objective(surrogate=part, trust_region=(squared_step(case.param("kl_penalty")),))
    batch = case.batch(
        "advantages", logp_sampler=case.tensor("logp_old"), logp_old=case.tensor("logp_prox")
    )
    return loss_and_grad(objective, batch, case.tensor("logp"))


def _moving_average(case: Case) -> Outputs:
    course = case.tensor("params_trajectory")
    average = MovingAverage(case.param("decay"))
    average.start([course[0]])
    averages, totals = [], []
    for weights in course[1:]:
        average.update([weights])
        averages.append(average.average[0].clone())
        totals.append(average.total)
    return {"ewma_after_each": torch.stack(averages), "total_weight": totals}


@dataclasses.dataclass
class _Table:
    """A table of logits as a policy, trained by SGD on FixPO's loss with the exact divergence."""

    case: Case
    logits: Tensor
    lr: float
    grad: Tensor | None = None
    loss: float = 0.0

    def gradient(self, batch: Batch) -> dict[str, float]:
        leaf = self.logits.clone().requires_grad_()
        logp = leaf.log_softmax(-1).gather(1, self.case.ids("actions")[:, None])
        surrogate = Objective(surrogate=ImportanceWeighted())(Evaluation(logp), batch).loss
        kl = divergences.exact_kl(self.case.tensor("logits_old"), leaf)
        loss = surrogate + (batch["step_coefficient"] * kl).mean()
        (self.grad,) = torch.autograd.grad(loss, leaf)
        self.loss = float(loss.detach())
        return {}

    def apply(self) -> dict[str, float]:
        assert self.grad is not None
        self.logits = self.logits - self.lr * self.grad
        return {}


class _ExactFixUp:
    """FixPO's rule with the divergence over the whole vocabulary."""

    def divergence(self, learner: Any, batch: Batch) -> Tensor:
        table = getattr(learner, "learner", learner)
        return divergences.exact_kl(table.case.tensor("logits_old"), table.logits)


@maps("fixpo")
def fixpo(case: Case) -> Outputs:
    base = {"max": FixUp, "mean": MeanFixUp}[case.param("stat")]
    made: Any = type("Exact", (_ExactFixUp, base), {})
    beta, limit = case.param("beta"), case.param("eps_kl")
    rule = made(
        limit=limit, scale=case.param("target_coeff"), beta=beta, beta_lr=0.0, most_fix_ups=500
    )
    old = case.tensor("logits_old").log_softmax(-1).gather(1, case.ids("actions")[:, None])
    batch = Batch.of(
        advantages=case.tensor("advantages")[:, None],
        logp_old=old,
        rewards=torch.zeros(len(old), dtype=torch.float64),
    )
    table: Any = _Table(case, case.tensor("logits"), case.param("fixup_lr"))
    kl = rule.divergence(table, batch)
    wrapped = Penalised(table, rule)
    violates = rule.violated(table, batch)
    wrapped.gradient(batch)
    outputs = {"loss": table.loss, "grad_logits": table.grad}
    steps = rule.fix_up(wrapped, batch)
    return {
        **outputs,
        "kl": kl,
        "beta_loss_grad": rule.weight.slope(rule.statistic(kl)),
        "violates": violates,
        "fixup_steps": len(steps),
        "fixup_logits": table.logits,
    }


@maps("trpo")
def trpo(case: Case) -> Outputs:
    theta, shape = case.tensor("theta").flatten(), case.tensor("theta").shape
    states, actions = case.ids("states"), case.ids("actions")
    old = theta.view(shape)[states]
    batch = Batch.of(
        advantages=case.tensor("advantages")[:, None],
        logp_old=old.log_softmax(-1).gather(1, actions[:, None]),
    )
    objective = Objective(surrogate=ImportanceWeighted())

    def surrogate(weights: Tensor) -> Tensor:
        logp = weights.view(shape)[states].log_softmax(-1).gather(1, actions[:, None])
        return -objective(Evaluation(logp), batch).loss

    def divergence(weights: Tensor) -> Tensor:
        return divergences.exact_kl(old, weights.view(shape)[states]).mean()

    rule = TrustRegionStep(
        max_kl=case.param("max_kl"),
        damping=case.param("damping"),
        iterations=case.param("cg_iters"),
        tolerance=case.param("cg_tol"),
        shrink=case.param("backtrack"),
        tries=case.param("max_backtracks"),
    )
    step = rule(theta, surrogate, divergence)
    product = curvature(divergence, theta, rule.damping)
    return {
        "surrogate": surrogate(theta),
        "gradient": step.gradient.view(shape),
        "fvp_of_gradient": product(step.gradient).view(shape),
        "direction": step.direction.view(shape),
        "full_step": step.full_step.view(shape),
        "accepted": step.backtracks >= 0,
        "backtracks": step.backtracks,
        "theta_new": step.weights.view(shape),
        "kl_new": divergence(step.weights),
        "surrogate_new": surrogate(step.weights),
    }


@maps("salsa")
def salsa(case: Case) -> Outputs:
    first, second = ({"w": case.tensor(f"weights_{i}")} for i in (1, 2))
    reference = soup(first, second, case.param("alpha"))["w"]
    states, tokens = case.ids("states"), case.ids("tokens")

    def log_probs(table: Tensor) -> Tensor:
        return table[states].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    logp, logp_ref = log_probs(case.tensor("weights_policy")), log_probs(reference)
    batch = case.batch(logp_old=logp, logp_ref=logp_ref)
    return {
        "soup": reference,
        "logp": logp * batch.mask,
        "logp_ref": logp_ref * batch.mask,
        "shaped_rewards": KLInReward(case.param("beta"))(batch).rewards,
    }
