"""Vectors of corrections, update rules, and what selection and rollouts add to a loss."""

from __future__ import annotations

from typing import Any

import torch

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.scales import PopulationZScore
from polyopt.advantages.signs import negative_part
from polyopt.advantages.truncated_values import ExtendedGAE
from polyopt.batch import Batch
from polyopt.divergences import K2, UnnormalizedForwardKL
from polyopt.levels import EachToken, RolloutMax, RolloutMean, RolloutSum, rollout_mean
from polyopt.objectives import ratios
from polyopt.objectives.aggregation import TokenBudgetMean, sequence_mean_token_mean
from polyopt.objectives.controls import ControlledSurrogate, WithControls
from polyopt.objectives.objective import Objective
from polyopt.objectives.one_token import OneTokenRollout
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ClippedSurrogate, ImportanceWeighted, PolicyGradient
from polyopt.objectives.value_losses import FinishedValueLoss, finished
from polyopt.rollouts.tempered import TemperedControls
from polyopt.selection.budgets import TokenBudget
from polyopt.selection.controls import SpliceControls
from polyopt.selection.corrections import (
    MaskedIS,
    RejectByDivergence,
    RejectByRatio,
    TruncatedIS,
    sampler_as_old,
    unit_mean_rollout_weights,
    unit_mean_token_weights,
)
from polyopt.selection.entropy_weights import EntropyGuidedRollouts, EntropyGuidedTokens
from polyopt.selection.golden import gold_where_all_failed
from polyopt.selection.mastered import MaskMasteredTokens
from polyopt.selection.windows import newest_tokens
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import AGGREGATIONS, credit, per_rollout

LEVELS: dict[str, Any] = {
    "token": EachToken(),
    "sequence": RolloutSum(),
    "seq_sum": RolloutSum(),
    "seq_mean": RolloutMean(),
    "seq_max": RolloutMax(),
}


def rejection(rule: list[Any]) -> RejectByRatio | RejectByDivergence:
    """The part of one of verl's rules, such as ["seq_mean_k3", 0.1, None]."""
    name, upper, lower = rule
    level, _, measure = name.rpartition("_")
    if measure == "k1":
        return RejectByRatio(upper, lower, LEVELS[level])
    shapes: dict[str, Any] = {"k2": K2(), "k3": UnnormalizedForwardKL()}
    return RejectByDivergence(upper, shapes[measure], LEVELS[level])


@maps("tis")
def tis(case: Case) -> Outputs:
    logp, bypass = case.tensor("logp"), case.param("mode") == "bypass_reinforce"
    batch = case.batch("advantages", logp_sampler=case.tensor("logp_rollout"))
    # in bypass mode the correction is for the current policy, at the first step the trainer's own
    batch = batch.replace(logp_old=logp if bypass else case.tensor("logp_old"))
    corrected = TruncatedIS(case.param("threshold"), LEVELS[case.param("level")])(batch)
    if case.param("batch_normalize"):
        token = case.param("level") == "token"
        corrected = (unit_mean_token_weights if token else unit_mean_rollout_weights)(corrected)
    weights, kept = corrected["weights"], batch
    for rule in case.param("rejection") or []:
        kept = kept.replace(loss_mask=kept.loss_mask & rejection(rule)(batch).loss_mask)
    surrogate: Any = PolicyGradient()
    if not bypass:
        assert case.param("mode") == "decoupled"
        surrogate = ClippedSurrogate(
            case.param("clip_low"), case.param("clip_high"), case.param("clip_c")
        )
    objective = Objective(surrogate=surrogate, aggregation=AGGREGATIONS[case.param("agg")])
    trained = corrected.replace(loss_mask=kept.loss_mask)
    rules = {rule[0]: rejection(rule) for rule in case.param("single_rules", [])}
    return {
        **loss_and_grad(objective, trained, logp),
        "weights": weights,
        "mask_after": kept.loss_mask.int(),
        "single_rule_masks": {n: rule(batch).loss_mask.int() for n, rule in rules.items()},
    }


@maps("areal-decoupled-ppo")
def areal_decoupled_ppo(case: Case) -> Outputs:
    batch = case.batch(
        "advantages", logp_sampler=case.tensor("logp_old"), logp_old=case.tensor("logp_prox")
    )
    level = {"token": EachToken(), "sequence": RolloutMean()}[case.param("level")]
    action = {"mask": MaskedIS, "clamp": TruncatedIS}[case.param("action")]
    weighted = action(case.param("upper"), level)(batch)
    eps = case.param("eps_clip")
    surrogate = ClippedSurrogate(eps, eps, case.param("c_clip"))
    dropped = (weighted["weights"] == 0) & batch.mask
    return {
        **loss_and_grad(Objective(surrogate=surrogate), weighted, case.tensor("logp")),
        "behave_weight": weighted["weights"],
        "kept_mask": (batch.mask & ~dropped).int(),
    }


@maps("ulorl-mpt")
def ulorl_mpt(case: Case) -> Outputs:
    logp = case.tensor("logp")
    if case.param("ratio") == "sais":  # each token's own segment's policy is its sampler
        by_policy = case.tensor("logp_old_by_policy")
        sampler = by_policy.gather(0, case.ids("segments")[None])[0]
        batch = case.batch("advantages", logp_sampler=sampler, logp_old=logp)
        batch = sampler_as_old(batch)
        clip = ClippedSurrogate(case.param("eps_clip"), case.param("eps_clip"))
        outputs = loss_and_grad(Objective(surrogate=clip), batch, logp)
        return {**outputs, "logp_old": batch["logp_old"].masked_fill(~batch.mask, 0.0)}
    assert case.param("ratio") == "pois"
    assert case.param("std_ddof") == 0
    batch = case.batch("entropy", logp_old=logp)  # every token counts as the newest policy's
    advantages = credit(PopulationZScore(case.param("adv_eps")), batch)
    batch = batch.replace(advantages=advantages)
    part = MaskMasteredTokens(case.param("prob_threshold"), case.param("target_entropy"))
    trained = part(batch)
    return {
        **loss_and_grad(Objective(surrogate=ImportanceWeighted()), trained, logp),
        "advantages": per_rollout(advantages, batch),
        "sample_entropy": rollout_mean(batch["entropy"], batch),
        "mpt": part.mastered(batch).int(),
        "keep_mask": trained.loss_mask.int(),
    }


@maps("otr")
def otr(case: Case) -> Outputs:
    part, logits = OneTokenRollout(case.param("beta")), case.tensor("logits").requires_grad_()
    targets, outputs = case.ids("target_tokens"), {}
    if case.has("sampled_tokens"):
        drawn = case.ids("sampled_tokens")
        outputs["token_rewards"] = part.rewards(drawn, targets)
        loss = part(logits, drawn, targets).mean()
    else:
        loss = part.expected(logits, targets, case.param("sampling_temperature")).mean()
    return {**outputs, "loss": loss, "grad_logits": torch.autograd.grad(loss, logits)[0]}


@maps("t-ppo")
def t_ppo(case: Case) -> Outputs:
    batch = case.batch(
        "token_rewards", "values", "logp_old", "lengths", truncated=case.tensor("truncated")
    )
    assert (batch["lengths"] == batch.mask.sum(1)).all()
    part = ExtendedGAE(case.param("gamma"), case.param("lam"))
    advantages = credit(part, batch)
    batch = batch.replace(advantages=advantages, **part.provide(batch))
    position = torch.arange(batch.width)[None]
    window = (position >= case.ids("window_start")[:, None]).long()  # newer weights from there on
    trained = newest_tokens(batch.replace(provenance=window))
    clip = ClippedSurrogate(case.param("eps_clip"), case.param("eps_clip"))
    ends = finished(batch)
    value = Objective(surrogate=ImportanceWeighted(), value=FinishedValueLoss(1.0))
    still = batch.replace(advantages=torch.zeros_like(advantages), loss_mask=ends)
    evaluation = Evaluation(batch["logp_old"], values=batch["values"])
    return {
        **loss_and_grad(Objective(surrogate=clip), trained, case.tensor("logp")),
        "advantages": advantages,
        "policy_mask": trained.loss_mask.int(),
        "value_mask": ends.int(),
        "value_targets": batch["returns"].masked_fill(~ends, 0.0),
        "value_loss": value(evaluation, still).loss,
    }


def _with_controls(case: Case, *columns: str) -> Batch:
    """Main rollouts, then the controls."""
    main = case.tensor("mask")
    both = {n: torch.cat([case.tensor(n), case.tensor(f"ctrl_{n}")]) for n in ("mask", *columns)}
    control = torch.arange(len(both["mask"])) >= len(main)
    return Batch.of(**both, control=control.double())


@maps("aepo")
def aepo(case: Case) -> Outputs:
    clip = ClippedSurrogate(case.param("eps_clip"), case.param("eps_clip"))
    if case.has("ctrl_rewards"):
        return _aepo_equation(case, clip)
    entropy, target = case.raw("policy_entropy"), case.param("entropy_target")
    sampler = TemperedControls(
        target, case.param("temperature_high"), case.param("temperature_low")
    )
    batch = _with_controls(case, "advantages", "logp_old", "logp")
    n = len(case.raw("mask"))
    spread = batch["advantages"][:, None] * batch.mask
    batch = batch.replace(
        advantages=spread, entropy=torch.full(batch.mask.shape, entropy, dtype=torch.float64)
    )
    threshold, most = case.param("select_threshold"), case.param("reinforce_sample_num")
    part = SpliceControls(target, threshold, most)
    control_rows, main_rows = part.chosen(batch, entropy)
    spliced = part(batch)
    return {
        **loss_and_grad(Objective(surrogate=clip), spliced, spliced["logp"]),
        "temperature": sampler.temperature(entropy),
        "ctrl_index": control_rows - n,
        "main_index": main_rows,
        "spliced_advantages": per_rollout(spliced["advantages"], spliced),
    }


def _aepo_equation(case: Case, clip: ClippedSurrogate) -> Outputs:
    batch = _with_controls(case, "logp")
    worth = torch.cat([case.tensor("advantages"), case.tensor("ctrl_rewards")])
    n = len(case.raw("mask"))
    old = torch.cat([case.tensor("logp_old"), batch["logp"][n:]])
    batch = batch.replace(advantages=worth[:, None] * batch.mask, logp_old=old)
    objective = Objective(
        surrogate=ControlledSurrogate(clip), aggregation=WithControls(case.param("alpha"))
    )
    outputs = loss_and_grad(objective, batch, batch["logp"])
    grad = outputs.pop("grad_logp")
    return {**outputs, "grad_logp": grad[:n], "grad_ctrl_logp": grad[n:]}


@maps("egsw")
def egsw(case: Case) -> Outputs:
    made = {"step": EntropyGuidedTokens, "trajectory": EntropyGuidedRollouts}
    part: Any = made[case.param("level")](case.param("alpha"), case.param("P"))
    batch = part(case.batch("advantages", "logp_old", "entropy"))
    clip = ClippedSurrogate(case.param("eps_clip"), case.param("eps_clip"))
    objective = Objective(surrogate=clip, aggregation=sequence_mean_token_mean)
    live = batch.mask.any(1)
    per_prompt = int(live.sum()) / max(len(torch.unique(batch.group[live])), 1)
    return {
        **loss_and_grad(objective, batch, case.tensor("logp")),
        "weights": batch["weights"] / per_prompt,  # the part's are 1 where all are equal
    }


@maps("c3po")
def c3po(case: Case) -> Outputs:
    order, budget = case.ids("order"), case.param("token_budget")
    batch = case.batch("advantages", "logp_old")
    draws = torch.empty(batch.mask.shape, dtype=torch.float64)
    draws[order] = (torch.arange(len(order)) / len(order)).double()[:, None]
    trained = TokenBudget(budget)(batch.replace(draws=draws))
    clip = ClippedSurrogate(case.param("eps_clip"), case.param("eps_clip"))
    objective = Objective(surrogate=clip, aggregation=TokenBudgetMean(budget))
    return {
        **loss_and_grad(objective, trained, case.tensor("logp")),
        "keep_mask": trained.loss_mask.int(),
        "tokens_used": int(trained.loss_mask.sum()),
    }


def _with_gold(case: Case) -> tuple[Batch, Tensor]:
    """All rollouts and then the golden answers, and which row trains in each rollout's place."""
    own = case.ids("group")
    prompts = torch.unique(own)
    columns = {
        name: torch.cat([case.tensor(name), case.tensor(f"gold_{name}")])
        for name in ("mask", "logp", "logp_old")
    }
    rewards = torch.cat([case.tensor("rewards"), torch.ones(len(prompts), dtype=torch.float64)])
    shown = (torch.arange(len(rewards)) >= len(own)).double()
    batch = Batch.of(
        group=torch.cat([own, prompts]), rewards=rewards, demonstration=shown, **columns
    )
    keep, places = gold_where_all_failed(batch), torch.arange(len(own))
    for gold in range(len(own), len(rewards)):
        if keep[gold]:
            places[~keep[: len(own)] & (own == batch.group[gold])] = gold
    return batch, places


@maps("gcpo")
def gcpo(case: Case) -> Outputs:
    assert case.param("replace") == "last"
    assert case.param("std_ddof") == 0
    batch, places = _with_gold(case)
    changed = batch.select(places)
    advantages = credit(PopulationZScore(case.param("adv_eps")), changed)
    objective = Objective(
        ratio=ratios.sequence_ratio,
        surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
        aggregation=sequence_mean_token_mean,
    )
    outputs = loss_and_grad(objective, changed.replace(advantages=advantages), changed["logp"])
    return {
        "replaced_index": (places >= len(places)).nonzero().flatten(),
        "rewards_after": changed.rewards,
        "advantages": per_rollout(advantages, changed),
        "loss": outputs["loss"],
        "grad_logp_after": outputs["grad_logp"],
    }


@maps("nsr-two-stage")
def nsr_two_stage(case: Case) -> Outputs:
    assert case.param("std_ddof") == 1
    batch = case.batch("logp_old")
    advantages = credit(GroupZScore(case.param("adv_eps")), batch)
    kept = negative_part(advantages, batch)
    ratio = {"grpo": ratios.token_ratio, "gspo": ratios.sequence_ratio}[case.param("form")]
    objective = Objective(
        ratio=ratio,
        surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
        aggregation=sequence_mean_token_mean,
    )
    return {
        **loss_and_grad(objective, batch.replace(advantages=kept), case.tensor("logp")),
        "advantages": per_rollout(advantages, batch),
        "advantages_kept": per_rollout(kept, batch),
    }
