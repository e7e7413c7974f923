"""Key tokens: credit for tokens whose presence goes with success or failure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import last_token
from polyopt.rollout_table import RolloutTable


@dataclass(frozen=True)
class TokenTable:
    """For each (group, token id) pair K: in how many rollouts of each outcome it occurs, how often.

    Attributes:
        entry: Pair of each token of the batch. [N, T]
        good: Successful rollouts that contain the token. [K]
        bad: Failed rollouts that contain it. [K]
        good_rollouts: Successful rollouts of the pair's group. [K]
        bad_rollouts: Failed rollouts of the pair's group. [K]
        good_share: Its share of all tokens of the group's successful rollouts. [K]
        bad_share: Its share of all tokens of the group's failed rollouts. [K]
        good_tokens: Tokens of the group's successful rollouts. [K]
        bad_tokens: Tokens of the group's failed rollouts. [K]
    """

    entry: Int[Tensor, "N T"]
    good: Float[Tensor, " K"]
    bad: Float[Tensor, " K"]
    good_rollouts: Float[Tensor, " K"]
    bad_rollouts: Float[Tensor, " K"]
    good_share: Float[Tensor, " K"]
    bad_share: Float[Tensor, " K"]
    good_tokens: Float[Tensor, " K"]
    bad_tokens: Float[Tensor, " K"]


def token_table(batch: Batch) -> TokenTable:
    """Count the sampled tokens of each group by outcome (reward > 0 is a success)."""
    mask, tokens, rollouts = batch.mask, batch["tokens"], RolloutTable.of(batch)
    pair = torch.stack([batch.group_index[:, None].expand_as(tokens), tokens], dim=-1)
    pairs, entry = torch.unique(pair[mask], dim=0, return_inverse=True)
    owner = rollouts.of_row[:, None].expand_as(tokens)[mask]
    success = (rollouts.rewards > 0).double()
    group_of = pairs[:, 0]

    def per_group(values: Tensor) -> Tensor:
        groups = int(rollouts.group.max()) + 1
        return values.new_zeros(groups).index_add(0, rollouts.group, values)[group_of]

    def per_pair(entries: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        won = success[owners]
        zeros = won.new_zeros(len(pairs))
        return zeros.index_add(0, entries, won), zeros.index_add(0, entries, 1 - won)

    once = torch.unique(torch.stack([owner, entry], dim=-1), dim=0)
    good, bad = per_pair(once[:, 1], once[:, 0])
    good_uses, bad_uses = per_pair(entry, owner)
    lengths = rollouts.lengths.double()
    good_tokens, bad_tokens = per_group(lengths * success), per_group(lengths * (1 - success))
    whole = torch.zeros_like(tokens)
    whole[mask] = entry
    return TokenTable(
        entry=whole,
        good=good,
        bad=bad,
        good_rollouts=per_group(success),
        bad_rollouts=per_group(1 - success),
        good_share=good_uses / good_tokens.clamp(min=1),
        bad_share=bad_uses / bad_tokens.clamp(min=1),
        good_tokens=good_tokens,
        bad_tokens=bad_tokens,
    )


def fisher_p(table: TokenTable) -> Float[Tensor, " K"]:
    """Two-sided p-value of Fisher's exact test: presence of the token against outcome.

    Sum of the hypergeometric probabilities of all tables with the same margins that are no more
    likely than the observed one; ties count, to a relative 1e-7.
    """
    won, lost, held = table.good_rollouts, table.bad_rollouts, table.good + table.bad
    most = int((won + lost).max()) + 1 if len(won) else 1
    x = torch.arange(most, dtype=torch.float64, device=won.device)[None]
    in_range = (x <= won[:, None]) & (held[:, None] - x <= lost[:, None]) & (x <= held[:, None])
    log_p = (
        _log_choose(won[:, None], x)
        + _log_choose(lost[:, None], held[:, None] - x)
        - _log_choose(won + lost, held)[:, None]
    )
    p = torch.where(in_range, log_p, -math.inf).exp()
    observed = p.gather(1, table.good.long()[:, None])
    return torch.where(p <= observed * (1 + 1e-7), p, 0.0).sum(1).clamp(max=1.0)


def information_gain(table: TokenTable) -> Float[Tensor, " K"]:
    """Bits that knowing whether a rollout contains the token tells about its outcome."""
    won, lost = table.good_rollouts, table.bad_rollouts
    total = won + lost
    held = table.good + table.bad
    inside = _binary_entropy(table.good, held) * held / total
    outside = _binary_entropy(won - table.good, total - held) * (total - held) / total
    return _binary_entropy(won, total) - inside - outside


def _binary_entropy(part_of: Tensor, whole: Tensor) -> Tensor:
    share = part_of / whole.clamp(min=1)
    rest = 1 - share
    nats: Tensor = torch.special.xlogy(share, share) + torch.special.xlogy(rest, rest)
    return -nats / math.log(2)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    """log of n over k; arguments outside 0..n give values that the caller must not use."""
    rest = (n - k).clamp(min=0)
    return torch.lgamma(n + 1) - torch.lgamma(k.clamp(min=0) + 1) - torch.lgamma(rest + 1)


@part("advantages.shaping", needs={"tokens"})
@dataclass(frozen=True)
class KeyTokens:
    """A_t += K(o_t): each token's statistical tie to success within its group.

    K = (2 sigmoid(S x) - 1) * top, with association S from Fisher's exact test (exp(-2p)) and
    information gain, and direction x from the shares of successful and failed rollouts that hold
    the token, plus a BM25-like frequency term. Groups without both outcomes get 0. The paper prints
    the probability of one table where the authors' code sums the two-sided p-value: the sum is
    used. Their code ignores its own weight flags; here they count.

    KTAE, arXiv 2505.16826, section 3.

    Attributes:
        fisher: Weight of Fisher's test in S.
        gain: Weight of the information gain in S.
        frequency: Weight of the frequency term in x.
        top: Bound of K.
        k1: Saturation of the frequency term.
        b: Length normalisation of the frequency term.
        ignored: Token ids that get no K. The stop token that ended a rollout never gets one.
    """

    fisher: float = 1.0
    gain: float = 1.0
    frequency: float = 1.0
    top: float = 1.0
    k1: float = 2.0
    b: float = 0.5
    ignored: tuple[int, ...] = ()

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        if not batch.mask.any():
            return advantages
        return advantages + self.key_values(batch).to(advantages.dtype)

    def key_values(self, batch: Batch) -> Float[Tensor, "N T"]:
        """K of every sampled token, float64."""
        table = token_table(batch)
        p = fisher_p(table)
        strength = torch.where(p > 1 - 1e-6, 0.0, torch.exp(-2 * p))
        association = (self.fisher * strength + self.gain * information_gain(table)) / (
            self.fisher + self.gain
        )
        key = (torch.sigmoid(association * self._direction(table)) - 0.5) * 2 * self.top
        mixed = (table.good_rollouts > 0) & (table.bad_rollouts > 0)
        values = torch.where(mixed, key, 0.0)[table.entry]
        return values.masked_fill(~batch.mask | self._left_out(batch), 0.0)

    def _direction(self, table: TokenTable) -> Float[Tensor, " K"]:
        """Positive where the token goes with success."""
        effect = _angle(table.good, table.good_rollouts) - _angle(table.bad, table.bad_rollouts)
        mean_tokens = (table.good_tokens + table.bad_tokens) / 2
        good = self._saturated(table.good_share, table.good_tokens / mean_tokens)
        bad = self._saturated(table.bad_share, table.bad_tokens / mean_tokens)
        return effect + self.frequency * (good / (bad + 1e-5) - bad / (good + 1e-5))

    def _saturated(self, share: Tensor, relative_length: Tensor) -> Tensor:
        """BM25's term frequency."""
        return share * (self.k1 + 1) / (share + self.k1 * (1 - self.b + self.b * relative_length))

    def _left_out(self, batch: Batch) -> Tensor:
        ids = torch.tensor(self.ignored, dtype=torch.long, device=batch.mask.device)
        out = torch.isin(batch["tokens"], ids)
        if "truncated" in batch:
            out = out | (last_token(batch.mask) & ~batch["truncated"].bool()[:, None])
        return out


def _angle(count: Tensor, of: Tensor) -> Tensor:
    """asin(sqrt(share)): half of Cohen's variance-stabilising transform."""
    return torch.asin((count / of.clamp(min=1)).sqrt())
