"""Bias and variance of every credit idea's gradient, against the exact policy gradient.

A softmax policy writes strings of up to three tokens (one of which stops); all 15 completions of a
prompt are enumerated, so the gradient of the expected reward is known exactly. Each idea then gets
many batches of rollouts, as in training: its advantages, selection and objective (without KL and
entropy terms, on-policy) give a gradient estimate per batch.

    python scripts/measure_estimators.py [IDEA ...]      # writes docs/estimators.md
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polyopt.batch import Batch, Prompt
from polyopt.errors import UserError
from polyopt.ideas import build, load_catalog
from polyopt.objectives.protocol import Evaluation
from polyopt.recipe import Recipe

VOCABULARY, LENGTH, STOP = 3, 3, 0
PROMPTS = 3
PAGE = Path(__file__).parent.parent / "docs" / "estimators.md"


Worth = Callable[[Tensor], Tensor]
"""What a policy is worth, from the success rate of each prompt [PROMPTS]."""


def expected_reward(rates: Tensor) -> Tensor:
    """Mean success rate."""
    return rates.mean()


def pass_at_4(rates: Tensor) -> Tensor:
    """Chance that one of four completions is right, mean over prompts."""
    return (1 - (1 - rates) ** 4).mean()


def even_steps(rates: Tensor) -> Tensor:
    """mean of 2 asin(sqrt(p)): its gradient is that of p over the deviation sqrt(p (1 - p))."""
    return 2 * torch.asin(rates.sqrt()).mean()


ASIN = "mean 2 asin(sqrt(p)), the limit of many rollouts"
OWN_OBJECTIVES: dict[str, tuple[str, Worth]] = {
    "grpo": (ASIN, even_steps),
    "grpo+sequence-sum": (ASIN, even_steps),
    "grpo+token-mean": (ASIN, even_steps),
    "max-at-k": ("pass@4", pass_at_4),
    "max-at-k+sequence-sum": ("pass@4", pass_at_4),
    "max-at-k-marginal": ("pass@4", pass_at_4),
    "max-at-k-marginal+sequence-sum": ("pass@4", pass_at_4),
}
"""Ideas whose stated (or known) objective isn't the expected reward."""


@dataclass(frozen=True)
class World:
    """All completions of each prompt, their probabilities, rewards and exact gradient.

    Attributes:
        tokens: Completions [C, LENGTH], padded with STOP.
        lengths: Their lengths [C].
        states: State (prefix) that each token is written from [C, LENGTH].
        logits: Policy [PROMPTS, S, VOCABULARY].
        rewards: Reward of each completion [PROMPTS, C].
    """

    tokens: Tensor
    lengths: Tensor
    states: Tensor
    logits: Tensor
    rewards: Tensor

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probability of each token of each completion [PROMPTS, C, LENGTH]; 0 beyond ends."""
        steps = logits.log_softmax(-1)[:, self.states]
        picked = steps.gather(-1, self.tokens.expand(len(logits), -1, -1)[..., None])[..., 0]
        return picked * self.inside

    @property
    def inside(self) -> Tensor:
        """Tokens that belong to their completion [C, LENGTH]."""
        return torch.arange(LENGTH)[None] < self.lengths[:, None]

    @property
    def probabilities(self) -> Tensor:
        """Probability of each completion [PROMPTS, C]."""
        return self.log_probs(self.logits).sum(-1).exp()

    def exact_gradient(self, objective: Worth) -> Tensor:
        """Exact gradient of an objective of the prompts' success rates, as the logits."""
        logits = self.logits.clone().requires_grad_()
        chance = self.log_probs(logits).sum(-1).exp()
        (grad,) = torch.autograd.grad(objective((chance * self.rewards).sum(1)), logits)
        return grad

    def values(self) -> Tensor:
        """Expected reward from each state [PROMPTS, S], exactly."""
        chance = self.probabilities
        states = int(self.states.max()) + 1
        reach, worth = torch.zeros(2, len(chance), states, dtype=torch.float64)
        for t in range(LENGTH):
            there = (self.lengths > t).double() * chance
            reach.index_add_(1, self.states[:, t], there)
            worth.index_add_(1, self.states[:, t], there * self.rewards)
        return worth / reach.clamp(min=1e-12)


def make_world(seed: int = 0) -> World:
    """Three prompts, easy to hard, with rewards that depend on content and go with length."""
    draw = torch.Generator().manual_seed(seed)
    completions = [[STOP]]
    completions += [[a, STOP] for a in (1, 2)]
    completions += [[a, b, c] for a in (1, 2) for b in (1, 2) for c in range(VOCABULARY)]
    lengths = torch.tensor([len(c) for c in completions])
    tokens = torch.tensor([c + [STOP] * (LENGTH - len(c)) for c in completions])
    states = torch.tensor([[0, c[0] if len(c) > 1 else 0, _second(c)] for c in completions])
    logits = torch.randn(PROMPTS, 7, VOCABULARY, generator=draw, dtype=torch.float64) * 0.5
    chance = torch.tensor([0.65, 0.35, 0.15])[:, None] + 0.1 * (lengths - 2)[None]
    rewards = (torch.rand(PROMPTS, len(completions), generator=draw) < chance).double()
    return World(tokens, lengths, states, logits, rewards)


def _second(completion: list[int]) -> int:
    return 3 + 2 * (completion[0] - 1) + completion[1] - 1 if len(completion) == LENGTH else 0


def sample(world: World, rollouts: int, draw: torch.Generator) -> tuple[Batch, Tensor]:
    """A batch of `rollouts` per prompt, and the completion of each row."""
    chance = world.probabilities
    picks = torch.multinomial(chance, rollouts, replacement=True, generator=draw).flatten()
    prompt = torch.arange(PROMPTS).repeat_interleave(rollouts)
    logp = world.log_probs(world.logits)[prompt, picks]
    steps = world.logits.log_softmax(-1)
    entropy = -(steps.exp() * steps).sum(-1)[prompt[:, None], world.states[picks]]
    inside = world.inside[picks]
    greedy = chance.argmax(1)
    others = torch.multinomial(chance, rollouts, replacement=True, generator=draw).flatten()
    known = world.rewards[prompt, others].view(PROMPTS, rollouts).tolist()
    metadata = [{"reference_rewards": rewards} for rewards in known]
    batch = Batch.of(
        mask=inside,
        group=prompt,
        rewards=world.rewards[prompt, picks],
        prompts=[Prompt(f"p{p}", "", metadata=metadata[p]) for p in prompt.tolist()],
        texts=[""] * len(prompt),
        tokens=world.tokens[picks],
        lengths=world.lengths[picks],
        prompt_tokens=prompt[:, None] + 3,
        prompt_lengths=torch.ones_like(prompt),
        provenance=torch.where(inside, 0, -3),
        logp_sampler=logp,
        logp_old=logp,
        logp_ref=logp,
        entropy=entropy * inside,
        values=world.values()[prompt[:, None], world.states[picks]] * inside,
        truncated=torch.zeros(len(prompt), dtype=torch.bool),
        max_tokens=torch.full((len(prompt),), 16.0, dtype=torch.float64),
        greedy_reward=world.rewards[torch.arange(PROMPTS), greedy][prompt],
        accuracy=world.rewards[prompt, picks],
        reference_reward=world.rewards[prompt, others],
        uniform_value_old=steps.mean(-1)[prompt[:, None], world.states[picks]] * inside,
    )
    return batch, picks


def gradient(world: World, recipe: Recipe, batch: Batch, picks: Tensor) -> Tensor:
    """The recipe's estimate of the gradient of its objective with respect to the logits."""
    for screen in recipe.selection.screens:
        keep = screen(batch)
        batch, picks = batch.select(keep), picks[keep]
    if len(batch) == 0:
        return torch.zeros_like(world.logits)
    for shaping in recipe.rewards.shaping:
        batch = shaping(batch)
    batch = recipe.advantages(batch)
    rows = batch.rollout.clone()
    for part in recipe.selection.parts:
        batch = part(batch)
    kept = torch.searchsorted(rows, batch.rollout)
    logits = world.logits.clone().requires_grad_()
    logp = world.log_probs(logits)[batch.group, picks[kept]]
    names = {"entropy": "entropy", "values": "values", "uniform_value": "uniform_value_old"}
    fields = {field: batch[column] for field, column in names.items()}
    loss = recipe.objective(Evaluation(logp, **fields), batch).loss
    (grad,) = torch.autograd.grad(loss, logits)
    return -grad


@dataclass(frozen=True)
class Measured:
    """What the batches of one idea showed.

    Attributes:
        scale: Length of the mean estimate along the exact gradient (1: same size).
        cosine: Cosine between mean estimate and exact gradient.
        bias: Part of the mean estimate at right angles to the exact gradient, over the part along.
        noise: Standard error of `bias`.
        variance: Total variance of one batch's estimate over the squared part along.
    """

    scale: float
    cosine: float
    bias: float
    noise: float
    variance: float


def measure(
    world: World,
    recipe: Recipe,
    rollouts: int,
    batches: int,
    objective: Worth = expected_reward,
) -> Measured:
    """Estimate gradients on many batches and compare with the exact one of an objective."""
    draw = torch.Generator().manual_seed(1)
    exact = world.exact_gradient(objective).flatten()
    found = torch.stack(
        [gradient(world, recipe, *sample(world, rollouts, draw)).flatten() for _ in range(batches)]
    )
    mean = found.mean(0)
    direction = exact / exact.norm()
    along = mean @ direction
    across = mean - along * direction
    variance = (found - mean).square().sum(1).mean()
    return Measured(
        scale=float(along / exact.norm()),
        cosine=float(along / mean.norm()),
        bias=float(across.norm() / along.abs()),
        noise=float((variance / batches).sqrt() / along.abs()),
        variance=float(variance / along.square()),
    )


def credit_ideas() -> list[str]:
    """Ideas that say how rewards become credit."""
    found = []
    for name in sorted(load_catalog()):
        try:
            origins = build(name).origins
        except UserError:
            continue
        touches = ("advantages.", "objective.surrogate", "objective.ratio", "objective.aggregation")
        if any(slot.startswith(touches) for slot in origins):
            found.append(name)
    return found


def bare(name: str) -> Recipe:
    """The idea's recipe without its KL, entropy and value terms."""
    recipe = build(name)
    if "advantages.estimator" not in recipe.origins:
        recipe = build(f"dr-grpo+{name}" if _fits(f"dr-grpo+{name}") else f"grpo+{name}")
    recipe = recipe.override(NUMBERS.get(name, {}))
    objective = dataclasses.replace(recipe.objective, kl=None, entropy=None, value=None)
    return dataclasses.replace(recipe, objective=objective)


NUMBERS = {"gtpo-trajectory": {"advantages.entropy_gate.threshold": 3.0}}
"""Numbers made for large models that a policy of three tokens can't meet."""


def _fits(expression: str) -> bool:
    try:
        build(expression)
    except UserError:
        return False
    return True


HEADER = """<!-- Generated by scripts/measure_estimators.py. -->

# What each estimator's gradient is

A softmax policy writes completions of one to three tokens; all 15 completions of each of three
prompts (success rates {rates}) are enumerated, so the gradient of the expected reward is exact.
Each idea gets {batches} batches of {rollouts} rollouts per prompt, sampled from the policy itself,
and estimates a gradient from each with its own advantages, selection, ratio, surrogate and
aggregation
(KL, entropy and value terms left out; one step, on-policy, so every ratio is 1). Ideas that say
nothing about the estimator are added to `dr-grpo` (or `grpo` where they don't fit).

- **scale**: size of the mean estimate along the exact gradient. A constant factor is a matter of
  the learning rate.
- **cosine** between mean estimate and exact gradient.
- **bias**: what of the mean estimate is at right angles to the exact gradient, relative to what is
  along it; ± its standard error. A bias within two errors of the error itself is none that shows.
- **variance** of one batch's estimate, relative to the square of the part along.

Bias is measured against the gradient of the *expected reward*. A method that means to optimise
something else (pass at k, a risk measure, a target distribution) is biased against it by design,
and so is every method that divides by a group's deviation: it weighs prompts by their difficulty.
"""


OWN = """
## Against their own objectives

The same estimates, compared with the exact gradient of what the method is about. Where the
published aggregation divides by each completion's length, that alone turns the gradient; the rows
with `+sequence-sum` leave the division out.

| idea | objective | scale | cosine | bias | variance |
|---|---|---|---|---|---|
"""


def _cells(m: Measured) -> str:
    return f"{m.scale:.3g} | {m.cosine:.3f} | {m.bias:.3f} ± {m.noise:.3f} | {m.variance:.1f}"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ideas", nargs="*", help="only these; the page isn't written")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--batches", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    world = make_world()
    rates = ", ".join(f"{r:.2f}" for r in (world.probabilities * world.rewards).sum(1))
    numbers = {"batches": options.batches, "rollouts": options.rollouts}
    lines = [HEADER.format(rates=rates, **numbers)]
    lines.append("\n| idea | scale | cosine | bias | variance |\n|---|---|---|---|---|\n")
    for name in options.ideas or credit_ideas():
        start = time.perf_counter()
        try:
            m = measure(world, bare(name), options.rollouts, options.batches)
        except KeyError as error:
            column = str(error).split("'")[1]
            row = f"| {name} | not measured: needs `{column}` from its own sampler | | | |\n"
        else:
            row = f"| {name} | {_cells(m)} |\n"
        lines.append(row)
        print(row.strip(), f"{time.perf_counter() - start:.1f}s", flush=True)
    lines.append(OWN)
    for name, (words, objective) in OWN_OBJECTIVES.items():
        m = measure(world, bare(name), options.rollouts, options.batches, objective)
        lines.append(f"| {name} | {words} | {_cells(m)} |\n")
        print(lines[-1].strip(), flush=True)
    if not options.ideas:
        PAGE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
