"""Columns that take a forward pass: computed before the update, if some part reads them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from polyopt.advantages.effective_rank import MEASURES, rank_measures
from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.models.policy import Policy
from polyopt.selection.information import divergence_from_group

LOGITS_AT_ONCE = 1 << 24
"""Most logits that exist at one time while the vocabulary's distributions are compared."""


@dataclass(frozen=True)
class ComputedColumns:
    """Computes columns with the policy and the policies beside it.

    Attributes:
        policy: The policy in training; its reference must be prepared where `logp_ref` is wanted.
        teacher: A frozen policy, for `logp_teacher`.
        distribution: What completions were sampled from.
        micro_tokens: Most tokens through a model at once.
    """

    policy: Policy
    teacher: Policy | None
    distribution: Distribution
    micro_tokens: int

    def add(self, batch: Batch, names: Set[str]) -> Batch:
        """The batch with those of the named columns that are computed."""
        columns = self._evaluated(batch, names)
        if "logp_ref" in names:
            columns["logp_ref"] = self.policy.reference_log_probs(
                batch, self.distribution, self.micro_tokens
            )
        if "logp_teacher" in names and self.teacher is not None:
            found = self.teacher.evaluate_all(batch, self.distribution, (), self.micro_tokens)
            columns["logp_teacher"] = found.logp
        if names & {*MEASURES, "vocabulary_divergence"}:
            hidden = self.policy.hidden_states(batch, self.micro_tokens)
            if names & set(MEASURES):
                columns |= rank_columns(hidden, batch)
            if "vocabulary_divergence" in names:
                columns["vocabulary_divergence"] = self._divergence(hidden, batch)
        return batch.replace(**columns)

    def _evaluated(self, batch: Batch, names: Set[str]) -> dict[str, Tensor]:
        """What one evaluation under the current policy gives, the sampler's entropy if it lacks."""
        fields = {"values": "values", "uniform_value_old": "uniform_value"}
        if "entropy" not in batch:
            fields["entropy"] = "entropy"
        want = {field for name, field in fields.items() if name in names}
        if not want and "logp_old" not in names:
            return {}
        found = self.policy.evaluate_all(batch, self.distribution, want, self.micro_tokens)
        columns = {"logp_old": found.logp} if "logp_old" in names else {}
        for name, field in fields.items():
            value = getattr(found, field)
            if name in names and value is not None:
                columns[name] = value
        return columns

    @torch.no_grad()
    def _divergence(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Column `vocabulary_divergence` [N, T], a group and a stretch of places at a time."""
        column = torch.zeros(batch.mask.shape)
        for group in torch.unique(batch.group_index):
            rows = batch.group_index == group
            per_place = max(int(rows.sum()) * self.policy.head_size, 1)
            stretch = max(LOGITS_AT_ONCE // per_place, 1)
            index = torch.zeros(int(rows.sum()), dtype=torch.long)
            for start in range(0, batch.width, stretch):
                places = slice(start, start + stretch)
                logp = self.policy.vocabulary_log_probs(hidden[rows, places], self.distribution)
                mask = batch.mask[rows, places]
                column[rows, places] = divergence_from_group(logp.cpu(), mask, index)
        return column


def rank_columns(hidden: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Effective rank, its velocity and its acceleration of each row's completion [N].

    Hidden states are those that predict the completion's tokens.
    """
    columns = {name: torch.zeros(len(batch)) for name in MEASURES}
    for i in range(len(batch)):  # rows differ in length
        if batch.mask[i].any():
            for name, value in rank_measures(hidden[i][batch.mask[i]].float()).items():
                columns[name][i] = float(value)
    return columns
