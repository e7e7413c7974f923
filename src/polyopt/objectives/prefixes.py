"""Objectives over the distinct prefixes of a group, rather than over its completions."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.batch import Batch
from polyopt.objectives.aggregation import sequence_mean_token_mean
from polyopt.objectives.protocol import Aggregation, Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import LOG_RATIO_BOUND, drift
from polyopt.parts import part


@part("objective.aggregation", needs={"prefix_share"})
@dataclass(frozen=True)
class PerDistinctPrefix:
    """Coefficients of another aggregation, times 1 / (completions that share the token's prefix).

    So k copies of a prefix weigh as one, in the surrogate and in the penalties; the denominator
    still counts tokens. Column `prefix_share` [N, T]: see `selection.prefix_tokens`.
    lambda-GRPO ("GRPO is Secretly a Process Reward Model"), arXiv 2509.21154.

    Attributes:
        base: The aggregation: means over completions as in GRPO, or over tokens as in DAPO.
    """

    base: Aggregation = sequence_mean_token_mean

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T]."""
        return self.base(batch) * batch["prefix_share"].masked_fill(~batch.loss_mask, 0.0)


@part("objective.surrogate", needs={"advantages"})
def probability_gain(log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
    """L_t = -A_t pi(o_t): the expected advantage of the next token, no ratio and no clip.

    Its gradient with respect to logp is -pi A: likely tokens move most. T-SPMO, arXiv 2504.20834
    (objective from the abstract and memory: pi rather than log pi is uncertain).
    """
    probability = evaluation.logp.clamp(max=LOG_RATIO_BOUND).exp()
    return TokenLoss(-batch["advantages"] * probability, drift(log_ratio))
