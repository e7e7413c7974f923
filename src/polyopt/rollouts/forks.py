"""Where a rollout forks, and which branch goes on: samplers that grow trees from whole rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import entropy_of, rollout_of, sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling
from polyopt.seeding import generator

Places = Callable[[int, Rollout, int], list[int]]
"""(tree, its first rollout, how many) -> places at which it forks, in order."""


def fork_positions(
    entropy: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], points: int
) -> Bool[Tensor, "N T"]:
    """The `points` sampled tokens of each rollout at which the policy was least certain.

    Of equal entropies the earlier counts first; a shorter rollout forks at all its tokens.
    """
    order = entropy.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return mask & (torch.empty_like(order).scatter(1, order, ranks) < points)


def forked_rollouts(trees: int, points: int, branches: int) -> int:
    """Leaves of the trees: M (1 + B N), each first response and B branches at each of N points."""
    return trees * (1 + branches * points)


def best_candidate(rewards: Float[Tensor, "turns K"]) -> Int[Tensor, " turns"]:
    """Which of K sampled actions the environment goes on with: the best, the first of equals.

    Greedy continuation of AT-GRPO, arXiv 2510.11062.
    """
    best = rewards.amax(dim=-1, keepdim=True)
    return (rewards == best).int().argmax(dim=-1)


def continued(parent: Rollout, sample: Sample, sampling: Sampling) -> Rollout:
    """A rollout that goes on from another's beginning, all of it sampled by the policy."""
    fresh, kept = rollout_of(parent.request, sample, sampling), len(sample.request.prefix)
    extras = dict(fresh.extras)
    if "entropy" in extras:
        extras["entropy"] = entropy_of(parent)[:kept] + entropy_of(fresh)[kept:]
    return dataclasses.replace(
        fresh,
        logp=parent.logp[:kept] + fresh.logp[kept:],
        provenance=parent.provenance[:kept] + fresh.provenance[kept:],
        extras=extras,
    )


@part("rollouts.sampler", provides={"tree"})
@dataclass(frozen=True)
class EntropyForkSampling:
    """Trees of rollouts: each first response forks where the policy was least certain.

    A tree is a whole response and `branches` continuations from each of its `points` tokens of
    largest entropy, 1 + branches * points rollouts for the tokens of far fewer. As many trees as
    fit into the rollouts of a prompt; if not even one does, one tree with fewer branches; what is
    left over is sampled plainly, as trees of one. Adds the column `tree` [N].
    ETMR of ETTRL, arXiv 2508.11356.

    Attributes:
        points: Tokens at which a tree forks.
        branches: Branches at each.
    """

    points: int = 3
    branches: int = 2

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The rollouts of all trees."""

        def uncertain(tree: int, first: Rollout, count: int) -> list[int]:
            entropy = torch.tensor([entropy_of(first)])
            everywhere = torch.ones_like(entropy, dtype=torch.bool)
            return fork_positions(entropy, everywhere, count)[0].nonzero().flatten().tolist()

        return _grow(sampling, requests, self.points, self.branches, uncertain)


@part("rollouts.sampler", provides={"tree"})
@dataclass(frozen=True)
class RandomForkSampling:
    """Trees of rollouts: each first response forks at tokens drawn at random.

    Sizes as for `EntropyForkSampling`. Tree-GRPO, arXiv 2509.21240, expands random nodes of its
    trees; its nodes are an agent's whole steps, here they are tokens.

    Attributes:
        points: Nodes at which a tree is expanded.
        branches: Continuations of each.
    """

    points: int = 3
    branches: int = 1

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The rollouts of all trees."""

        def anywhere(tree: int, first: Rollout, count: int) -> list[int]:
            draws = generator(sampling.seed_for("rollouts/nodes", first.request, tree))
            length = len(first.tokens)
            chosen = draws.choice(length, size=min(count, length), replace=False)
            return sorted(int(place) for place in chosen)

        return _grow(sampling, requests, self.points, self.branches, anywhere)


def _grow(
    sampling: Sampling,
    requests: Sequence[PromptRequest],
    points: int,
    branches: int,
    places: Places,
) -> list[Rollout]:
    """First responses, then their branches, all prompts in two engine calls."""
    size = forked_rollouts(1, points, branches)
    trees = [max(request.rollouts // size, 1) for request in requests]
    plain = [max(r.rollouts - t * size, 0) for r, t in zip(requests, trees, strict=True)]
    starts = [
        dataclasses.replace(request, rollouts=t + p)
        for request, t, p in zip(requests, trees, plain, strict=True)
    ]
    firsts = iter(sample_independently(sampling, starts))
    rollouts, parents, asks = [], [], []
    for start, request, count in zip(starts, requests, trees, strict=True):
        for tree in range(start.rollouts):
            own = dataclasses.replace(next(firsts), request=request)
            first = dataclasses.replace(own, extras={**own.extras, "tree": float(tree)})
            rollouts.append(first)
            if tree < count:
                room = min(request.rollouts - 1, size - 1)
                forks = _forks(sampling, first, tree, places(tree, first, points), branches, room)
                parents += [first] * len(forks)
                asks += forks
    samples = sampling.engine.sample(asks) if asks else []
    for parent, sample in zip(parents, samples, strict=True):
        branch = continued(parent, sample, sampling)
        extras = {**branch.extras, "tree": parent.extras["tree"]}
        rollouts.append(dataclasses.replace(branch, extras=extras))
    return rollouts


def _forks(
    sampling: Sampling,
    first: Rollout,
    tree: int,
    places: Sequence[int],
    branches: int,
    room: int,
) -> list[SampleRequest]:
    """Requests for the branches of one tree, at most `room`."""
    asks = [
        dataclasses.replace(
            sampling.base,
            prompt=first.prompt_tokens,
            prefix=first.tokens[:place],
            seed=sampling.seed_for(f"rollouts/fork{tree}", first.request, nth * branches + branch),
        )
        for nth, place in enumerate(places)
        for branch in range(branches)
    ]
    return asks[:room]
