"""Trees of segments: every segment that isn't finished is continued several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.forks import continued
from polyopt.rollouts.protocol import Rollout, Sampling


@dataclass(frozen=True)
class _Branch:
    """A beginning that is to be continued.

    Attributes:
        request: The prompt visit.
        start: The rollout so far.
        segments: Id of the segment of each of its tokens.
        quota: Leaves that it may still have.
    """

    request: PromptRequest
    start: Rollout
    segments: tuple[float, ...]
    quota: int


@part("rollouts.sampler", provides={"segment"})
@dataclass(frozen=True)
class SegmentTreeSampling:
    """A tree of segments for each prompt, its leaves the prompt's rollouts.

    From every unfinished segment several continuations of at most `segment` tokens are sampled,
    down to `depth` levels; the last level runs to the completion limit. Branching is even: the
    smallest b with b^levels >= leaves at every node, the leaves shared out among the branches. With
    216 rollouts a prompt and depth 3 that is 6-6-6. A branch that ends early is one leaf, so there
    may be fewer rollouts than asked for. Adds the column `segment` [N, T].

    SPO-tree, arXiv 2505.23564 (6-6-6, segments of 600 tokens); TreeRPO, arXiv 2506.05183.

    Attributes:
        depth: Levels of the tree.
        segment: Tokens of a segment; None divides the completion limit by the depth.
    """

    depth: int = 3
    segment: int | None = None

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The leaves, a level of all trees per engine call."""
        open_ends = [
            _Branch(request, _unbegun(sampling, request), (), request.rollouts)
            for request in requests
        ]
        leaves, names = [], {request.group: 0 for request in requests}
        for level in range(self.depth):
            grown = self._level(sampling, open_ends, level, names)
            last = level == self.depth - 1
            leaves += [b for b in grown if last or self._finished(sampling, b)]
            open_ends = [b for b in grown if not (last or self._finished(sampling, b))]
            if not open_ends:
                break
        return [_marked(branch) for branch in leaves]

    def _level(
        self, sampling: Sampling, ends: Sequence[_Branch], level: int, names: dict[int, int]
    ) -> list[_Branch]:
        """The continuations of every open end."""
        asks, children = [], []
        for end in ends:
            for quota in _shares(end.quota, self.depth - level):
                name = names[end.request.group]
                names[end.request.group] += 1
                asks.append(
                    dataclasses.replace(
                        sampling.base,
                        prompt=end.start.prompt_tokens,
                        prefix=end.start.tokens,
                        max_tokens=self._limit(sampling, level),
                        seed=sampling.seed_for(f"rollouts/level{level}", end.request, name),
                    )
                )
                children.append((end, quota, name))
        samples = sampling.engine.sample(asks)
        grown = []
        for (end, quota, name), sample in zip(children, samples, strict=True):
            rollout = continued(end.start, sample, sampling)
            segments = end.segments + (float(name),) * len(sample.tokens)
            grown.append(_Branch(end.request, rollout, segments, quota))
        return grown

    def _limit(self, sampling: Sampling, level: int) -> int:
        """Most completion tokens at the end of a level."""
        whole = sampling.base.max_tokens
        if level == self.depth - 1:
            return whole
        each = self.segment if self.segment is not None else -(-whole // self.depth)
        return min(each * (level + 1), whole)

    def _finished(self, sampling: Sampling, branch: _Branch) -> bool:
        """Whether a rollout has stopped, or reached the completion limit."""
        rollout = branch.start
        return rollout.finish == "stop" or len(rollout.tokens) >= sampling.base.max_tokens


def _shares(quota: int, levels: int) -> list[int]:
    """Leaves of each branch of a node that has `quota` of them in `levels` levels."""
    branches = 1
    while branches**levels < quota:
        branches += 1
    return [quota // branches + (i < quota % branches) for i in range(branches)]


def _unbegun(sampling: Sampling, request: PromptRequest) -> Rollout:
    """A rollout that hasn't begun."""
    prompt = sampling.encode(request.prompt, "")
    return Rollout(request, prompt, (), (), (), "length", "", extras={"entropy": ()})


def _marked(branch: _Branch) -> Rollout:
    rollout = branch.start
    return dataclasses.replace(rollout, extras={**rollout.extras, "segment": branch.segments})
