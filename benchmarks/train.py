"""Forward and backward: tokens per second against plain Hugging Face, and against the machine.

    python benchmarks/train.py --model smollm2

Ours is the gradient of GRPO's objective over the batch, theirs the model's own cross-entropy over
the same rows, padded, in micro-batches of `--peer-rows`; both on the same model, in turns. Two
workloads: groups of 8 that share a prompt, and as many rows with prompts of their own. Tokens are
counted as they stand in rows, prompts included, for both sides.

Two more lines set us against the machine: model FLOP per second on useful tokens, against the best
measured rate of matrix products. Useful is what can't be left out: each distinct prompt once, every
completion, and the LM head on completions; 6 FLOP per weight and token, attention not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import hf
import limits
import torch
from harness import Comparison, Side, against_limit, attempt_all, in_turns, parse, parser, rates
from workloads import Workload, policy_of

from polyopt.batch import Batch
from polyopt.ideas import build
from polyopt.models.policy import Policy
from polyopt.updates.learner import Learner

PRODUCT_GOAL = 0.6


def token_rows(work: Workload, vocabulary: int) -> tuple[list[list[int]], list[list[int]]]:
    """Random prompts (one per group, repeated) and completions of the workload's rows."""
    noise = torch.Generator().manual_seed(0)

    def draw(rows: int, length: int) -> list[list[int]]:
        ids: list[list[int]] = torch.randint(
            3, vocabulary, (rows, length), generator=noise
        ).tolist()
        return ids

    prompts = [p for p in draw(work.prompts, work.prompt_tokens) for _ in range(work.rollouts)]
    return prompts, draw(work.rows, work.new_tokens)


def batch_of(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Batch:
    """The rows as our trainer would have them, with advantages."""
    n = len(prompts)
    tokens = torch.tensor([list(c) for c in completions])
    known: dict[tuple[int, ...], int] = {}
    group = torch.tensor([known.setdefault(tuple(p), len(known)) for p in prompts])
    return Batch.of(
        group=group,
        mask=torch.ones(tokens.shape),
        tokens=tokens,
        lengths=torch.full((n,), tokens.shape[1]),
        prompt_tokens=torch.tensor([list(p) for p in prompts]),
        prompt_lengths=torch.full((n,), len(prompts[0])),
        advantages=torch.where(torch.arange(n)[:, None] % 2 == 0, 1.0, -1.0).expand(tokens.shape),
    )


def learner_of(policy: Policy) -> Learner:
    """What computes gradients in our trainer, with GRPO's objective without KL."""
    recipe = build("grpo", {"objective.kl": "none"})
    return Learner(
        policy,
        recipe.objective,
        recipe.updates.optimizer,
        recipe.updates.schedule,
        distribution=recipe.rollouts.distribution,
        micro_tokens=recipe.updates.micro_tokens,
        total_steps=1,
    )


def useful_flop(model: Any, work: Workload) -> int:
    """FLOP of products with weights in forward and backward, on useful tokens."""
    total = sum(p.numel() for p in model.parameters())
    embedding = model.get_input_embeddings().weight.numel()
    head = model.get_output_embeddings().weight.numel()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    body = total - embedding - (0 if tied else head)
    return int(6 * body * work.distinct_tokens + 6 * head * work.rows * work.new_tokens)


def compare(
    policy: Policy, name: str, work: Workload, options: argparse.Namespace
) -> tuple[Comparison, list[float]]:
    """Tokens per second of both sides on one workload, and our times."""
    prompts, completions = token_rows(work, policy.model.config.vocab_size)
    batch = batch_of(prompts, completions)
    learner = learner_of(policy)
    peer = hf.loss_call(policy.model, prompts, completions, options.peer_rows, policy.autocast)
    times = in_turns({"polyopt": lambda: learner.gradient(batch), "transformers": peer}, options)
    ours, other = (rates(side, work.tokens, samples) for side, samples in times.items())
    details = {"sizes": str(work), "peer_rows": options.peer_rows}
    made = Comparison(
        "train",
        f"{name} prompts against cross-entropy",
        "tokens/s",
        ours,
        other,
        ours.median / other.median,
        details=details,
    )
    return made, times["polyopt"]


def against_machine(
    name: str, flop: int, times: Sequence[float], peak: float, work: Workload
) -> Comparison:
    """FLOP per second on useful tokens against the rate of matrix products."""
    return against_limit(
        "train",
        f"{name} prompts",
        "GFLOP/s",
        rates("polyopt", flop / 1e9, times),
        Side("matrix products", [peak / 1e9]),
        goal=PRODUCT_GOAL,
        details={"sizes": str(work), "useful_gflop": round(flop / 1e9, 3)},
    )


def measure(
    policy: Policy, name: str, work: Workload, peak: float, options: argparse.Namespace
) -> Iterator[Comparison]:
    """One workload against the peer, then against the machine."""
    comparison, times = compare(policy, name, work, options)
    yield comparison
    yield against_machine(name, useful_flop(policy.model, work), times, peak, work)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Print the JSON lines; whether all went well."""
    made = parser(__doc__)
    made.add_argument("--model", default="smollm2")
    made.add_argument("--prompts", type=int, default=4)
    made.add_argument("--rollouts", type=int, default=8)
    made.add_argument("--prompt-tokens", type=int, default=173)
    made.add_argument("--new-tokens", type=int, default=64)
    made.add_argument("--peer-rows", type=int, default=8, help="rows of a micro-batch of the peer")
    options = parse(made, arguments)
    if options.quick:
        options.model, options.prompts, options.rollouts = "embedded", 2, 4
        options.prompt_tokens, options.new_tokens = 12, 6
    shared = Workload(
        options.model,
        options.prompts,
        options.rollouts,
        options.prompt_tokens,
        options.new_tokens,
    )
    own = dataclasses.replace(shared, prompts=shared.rows, rollouts=1)
    policy = policy_of(options.model)
    shapes = limits.layer_shapes(policy.model.config, 2048)
    peak = limits.product_rate(shapes, options.clock, options.quick)
    measures = {
        name: partial(measure, policy, name, work, peak, options)
        for name, work in (("shared", shared), ("own", own))
    }
    return attempt_all("train", measures, options)


if __name__ == "__main__":
    sys.exit(not main())
