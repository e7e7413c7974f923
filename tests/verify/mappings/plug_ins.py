"""Vectors of the plug-ins of the first catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.key_tokens import KeyTokens
from polyopt.batch import Batch, Prompt
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.prompts.selective import SelectiveRollout
from polyopt.replay.successes import ReplaySuccesses
from polyopt.selection.screens import AdaptiveRefill
from polyopt.updates.slow_fast import SlowFast
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import credit, per_rollout


@maps("ktae")
def ktae(case: Case) -> Outputs:
    part = KeyTokens(
        fisher=case.param("w_fisher"),
        gain=case.param("w_ig"),
        frequency=case.param("w_tf"),
        top=case.param("top"),
        k1=case.param("k1"),
        b=case.param("b"),
        ignored=(case.param("pad_id"),),
    )
    batch = case.batch("tokens")
    base = credit(GroupZScore(case.param("epsilon"), lone=1.0), batch)
    return {"key_token_values": part.key_values(batch), "advantages": part(base, batch)}


@maps("greso")
def greso(case: Case) -> Outputs:
    rule = case.param("rule")
    if rule == "skip":
        return _skips(case)
    if rule == "adapt":
        part = SelectiveRollout(
            easy=case.param("p_easy"),
            hard=case.param("p_hard"),
            target=case.param("target_zero_variance"),
            step=case.param("step"),
            least=case.param("min_p"),
            most=case.param("max_p"),
        )
        part.adapt(case.raw("easy_ratio"), case.raw("hard_ratio"))
        return {"p_easy": part.easy, "p_hard": part.hard}
    n, per_step = case.param("rollout_n"), case.param("default_prompts")
    refill = AdaptiveRefill(case.param("slack"), case.param("minimum"))
    missing = (case.raw("need") - case.raw("have")) / n
    silent = case.raw("zero_variance_ratio")
    last = int(missing / (1 - silent) * refill.slack) <= per_step
    return {"prompts": refill(missing, per_step, silent), "last": int(last)}


def _skips(case: Case) -> Outputs:
    part = SelectiveRollout(
        easy=case.param("p_easy"),
        hard=case.param("p_hard"),
        easy_at=case.param("easy_at"),
        hard_at=case.param("hard_at"),
        floor=case.param("floor"),
    )
    histories = case.raw("histories")
    part.history = {str(i): list(history) for i, history in enumerate(histories)}
    names = [str(i) for i in range(len(histories))]
    runs = [part.runs(name) for name in names]
    skips = [part.skip_probabilities(name) for name in names]
    draws = zip(case.raw("u_easy"), case.raw("u_hard"), strict=True)
    decisions = []
    for name, pair, (skip_easy, _) in zip(names, draws, skips, strict=True):
        kept = part.keep(Prompt(name, ""), _Draws(pair))  # type: ignore[arg-type]
        decisions.append("keep" if kept else "easy" if pair[0] < skip_easy else "hard")
    return {
        "easy_run": [easy for easy, _ in runs],
        "hard_run": [hard for _, hard in runs],
        "skip_easy": [easy for easy, _ in skips],
        "skip_hard": [hard for _, hard in skips],
        "decision": decisions,
    }


class _Draws:
    """A generator whose uniforms or permutations are given."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = iter(values)

    def random(self) -> float:
        return float(next(self.values))

    def permutation(self, count: int) -> np.ndarray[Any, Any]:
        return np.array([i for i in next(self.values) if i < count], dtype=int)


@maps("rlep")
def rlep(case: Case) -> Outputs:
    if case.param("rule") == "draw":
        return _drawn(case)
    group = torch.cat([case.ids("fresh_group"), case.ids("replay_group")])
    replayed = torch.ones(len(case.raw("replay_group")), dtype=torch.float64)
    rewards = torch.cat([case.tensor("fresh_rewards"), replayed])
    batch = case.batch("logp_old", rewards=rewards, group=group)
    advantages = credit(GroupZScore(case.param("eps")), batch)
    objective = Objective(
        surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
        aggregation=token_mean,
    )
    outputs = loss_and_grad(objective, batch.replace(advantages=advantages), case.tensor("logp"))
    rows = per_rollout(advantages, batch)
    return {**outputs, "rewards": rewards, "group": group, "advantages": rows}


def _drawn(case: Case) -> Outputs:
    """Which pool entries join each prompt's group, through the real `mix`."""
    sizes, orders, m = case.raw("pool"), case.raw("order"), case.param("m")
    part = ReplaySuccesses(per_prompt=m, capacity=max([*sizes, 1]))
    groups = torch.arange(len(sizes))
    fresh = Batch.of(
        mask=torch.ones(len(sizes), 1),
        group=groups,
        rewards=torch.ones(len(sizes)),
        prompts=[Prompt(str(i), "") for i in range(len(sizes))],
        texts=[""] * len(sizes),
    )
    for i, size in enumerate(sizes):
        for k in range(size):
            part.store(fresh.select(torch.tensor([i])).replace(texts=(str(k),)))
    mixed = part.mix(fresh, _Draws(orders))  # type: ignore[arg-type]
    added = range(len(sizes), len(mixed))
    picked = [
        [int(mixed.texts[j]) for j in added if mixed.group[j] == i] for i in range(len(sizes))
    ]
    blank = [m - len(row) for row in picked]  # rows that the authors' code leaves empty
    return {"picked": picked, "blank_rows": blank}


@maps("sfpo")
def sfpo(case: Case) -> Outputs:
    if "theta" not in case.inputs:
        return _schedule(case)
    quadratic = _Quadratic(case)
    start = quadratic.theta.clone()
    rule = SlowFast(case.param("fast_steps"), case.param("alpha"))
    empty = Batch.of(mask=torch.zeros(1, 1), entropy=torch.zeros(1, 1, dtype=torch.float64))
    rule(quadratic, empty, np.random.default_rng(0))
    fast = [start, *quadratic.path[:-1]] if rule.alpha else [start]
    moved = quadratic.repositioned if quadratic.repositioned is not None else start
    return {"fast_path": fast, "repositioned": moved, "theta_next": quadratic.theta}


class _Quadratic:
    """SGD on a quadratic-plus-quartic loss, as an update rule sees a learner."""

    def __init__(self, case: Case) -> None:
        self.theta, self.hessian = case.tensor("theta"), case.tensor("hessian")
        self.center, self.lr = case.tensor("center"), case.param("lr")
        self.quartic = case.param("quartic")
        self.path: list[Tensor] = []
        self.repositioned: Tensor | None = None

    def gradient(self, batch: Batch) -> dict[str, float]:
        self.grad = self.hessian @ (self.theta - self.center) + self.quartic * self.theta**3
        return {}

    def apply(self) -> dict[str, float]:
        self.theta = self.theta - self.lr * self.grad
        self.path.append(self.theta)
        return {}

    def weights(self) -> list[Tensor]:
        return [self.theta.clone()]

    def interpolate(self, start: Sequence[Tensor], share: float) -> None:
        self.theta = start[0] + share * (self.theta - start[0])
        self.repositioned = self.theta


def _schedule(case: Case) -> Outputs:
    """When the fast steps end, given the course of the entropy."""
    assert case.param("eps") == 1e-8
    assert case.param("require_full_window")
    assert case.param("std_ddof") == 0
    rule = SlowFast(
        alpha=case.param("alpha0"), window=case.param("window"), threshold=case.param("tau")
    )
    alphas, distances = [], []
    for entropy in case.raw("entropy_series"):
        alphas.append(0.0 if rule.stopped else rule.alpha)
        distances.append(rule.watch(entropy))
    stopped = [i for i, alpha in enumerate(alphas) if alpha == 0]
    return {"z": distances, "alphas": alphas, "trigger": stopped[0] if stopped else None}
