"""`Collector`: one step's fresh rollouts, from prompts over rollouts and rewards to screens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyopt.batch import Batch, concat
from polyopt.engines.protocol import Engine, SampleRequest
from polyopt.models.policy import Policy
from polyopt.prompts.protocol import PromptRequest
from polyopt.prompts.queue import PromptQueue
from polyopt.recipe import Recipe
from polyopt.rewards.scoring import score
from polyopt.rollouts.assemble import assemble
from polyopt.rollouts.protocol import Rollout, Sampler, Sampling
from polyopt.selection.screens import has_signal
from polyopt.stopwatch import Stopwatch
from polyopt.tasks.task import Task


@dataclass(frozen=True)
class Collected:
    """Fresh rollouts of a step.

    Attributes:
        kept: Rows that passed every screen, at most a step's prompts; None if there are none.
        seen: All scored rows.
        rounds: Sampling rounds that it took.
        missing: Prompts that the step lacks.
    """

    kept: Batch | None
    seen: Batch
    rounds: int
    missing: int


@dataclass
class Collector:
    """Runs the stages prompts, rollouts, rewards and screens.

    Attributes:
        policy: For its tokenizer.
        engine: Samples.
        task: Training prompts and reward terms.
        recipe: What to do.
        queue: The prompts stage at work.
        clock: Time per stage.
        seed: The run's seed.
        reference: Samples from the policy as it was before training, if some part needs that.
        rollouts: Rollouts made so far in the run: the next rollout id.
        first: Nothing has been scored yet.
    """

    policy: Policy
    engine: Engine
    task: Task
    recipe: Recipe
    queue: PromptQueue
    clock: Stopwatch
    seed: int
    reference: Engine | None = None
    rollouts: int = field(default=0, init=False)
    first: bool = field(default=True, init=False)

    def collect(self, step: int) -> Collected:
        """Sample, score and screen until the step has its prompts or its rounds are used up."""
        selection, per_step = self.recipe.selection, self.recipe.prompts.per_step
        kept: list[Batch] = []
        seen: list[Batch] = []
        have, count = 0, per_step
        for _ in range(selection.rounds):
            requests = self.queue.propose(count, step)
            batch = self._scored(requests, step)
            seen.append(batch)
            passed = batch.select(self._screened(batch))
            kept.append(passed)
            groups = len(torch.unique(passed.group))
            have += groups
            if have >= per_step:
                break
            missing = per_step - have
            count = selection.refill(missing, per_step, 1 - groups / len(requests))
        everything = concat(seen)
        self.queue.observe(everything)
        chosen = _first_groups(concat(kept), per_step) if have else None
        return Collected(chosen, everything, len(seen), max(per_step - have, 0))

    def _scored(self, requests: Sequence[PromptRequest], step: int) -> Batch:
        """Rollouts of the requests with their rewards."""
        sampling = self._sampling(step)
        with self.clock("rollouts"):
            rollouts = self.recipe.rollouts.sampler(sampling, requests)
            for addition in self.recipe.rollouts.additions:
                rollouts = [*rollouts, *addition(sampling, requests)]
            batch = self._batch(rollouts)
            for annotation in self.recipe.rollouts.annotations:
                batch = batch.replace(**annotation(batch, self.policy.token_texts))
            measured = [
                (sampler, self._batch(sampler(sampling, requests)))
                for sampler in self.recipe.rollouts.measurements
            ]
        with self.clock("rewards"):
            batch = self.score(batch)
            for sampler, rows in measured:
                batch = _with_measurement(batch, self.score(rows), sampler)
        return batch

    def score(self, batch: Batch) -> Batch:
        """The batch with rewards, each term as `reward/NAME`, and `accuracy` if the task has it."""
        scores = score(self.task.rewards, batch.prompts, batch.texts, first=self.first)
        self.first = False
        columns = {f"reward/{name}": values.float() for name, values in scores.terms.items()}
        term = self.task.accuracy_term
        if term is not None:
            columns["accuracy"] = columns[f"reward/{term.name}"]
        return batch.replace(rewards=scores.total.float(), **columns)

    def _batch(self, rollouts: Sequence[Rollout]) -> Batch:
        batch = assemble(rollouts, self.recipe.rollouts.max_tokens, self.rollouts)
        self.rollouts += len(rollouts)
        return batch

    def _screened(self, batch: Batch) -> Tensor:
        keep = torch.ones(len(batch), dtype=torch.bool)
        for screen in self.recipe.selection.screens:
            keep &= screen(batch)
        return keep

    def _sampling(self, step: int) -> Sampling:
        rollouts = self.recipe.rollouts
        return Sampling(
            engine=self.engine,
            encode=lambda prompt, addition: self.policy.encode(prompt, addition, self.task.system),
            encode_completion=self.policy.encode_completion,
            decode=self.policy.decode,
            judge=self._judge,
            base=SampleRequest(
                prompt=(),
                seed=0,
                max_tokens=rollouts.max_tokens,
                distribution=rollouts.distribution,
                stop_ids=self.policy.stop_ids,
                entropy=True,
            ),
            seed=self.seed,
            step=step,
            reference=self.reference,
        )

    def _judge(self, rollouts: Sequence[Rollout]) -> list[float]:
        scores = score(
            self.task.rewards, [r.request.prompt for r in rollouts], [r.text for r in rollouts]
        )
        term = self.task.accuracy_term
        return (scores.terms[term.name] if term else scores.total).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Counters; the recipe's parts keep their own memory."""
        return {"rollouts": self.rollouts, "queue": self.queue.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.rollouts = state["rollouts"]
        self.queue.load_state_dict(state["queue"])


def _with_measurement(batch: Batch, rows: Batch, sampler: Sampler) -> Batch:
    """The batch with measured rewards as a column.

    One measurement per group goes to all of its rows; those of a sampler with `paired` are given
    out in order, the i-th to the group's i-th row.
    """
    by_group: dict[int, list[float]] = {}
    for group, reward in zip(rows.group.tolist(), rows.rewards.tolist(), strict=True):
        by_group.setdefault(group, []).append(reward)
    paired = getattr(sampler, "paired", False)
    place: Counter[int] = Counter()
    values = []
    for group in batch.group.tolist():
        values.append(by_group[group][place[group] if paired else 0])
        place[group] += 1
    column = torch.tensor(values)
    return batch.replace(**{sampler.column: column})  # type: ignore[attr-defined]


def _first_groups(batch: Batch, count: int) -> Batch:
    """The rows of the first `count` groups in the order they were sampled."""
    groups = list(dict.fromkeys(batch.group.tolist()))[:count]
    return batch.select(torch.isin(batch.group, torch.tensor(groups)))


def rollout_metrics(collected: Collected) -> dict[str, float]:
    """What to watch of a step's fresh rollouts; means skip what nobody could score."""
    seen = collected.seen
    metrics = {"reward/mean": seen.rewards.nanmean().item()}
    for name, column in seen.columns.items():
        if name.startswith("reward/"):
            metrics[name] = column.nanmean().item()
    if "accuracy" in seen:
        known = seen["accuracy"][~seen["accuracy"].isnan()]
        metrics["accuracy"] = (known >= 1).float().mean().item()
    first = torch.unique(seen.group_index, return_inverse=True)[1]
    signal = torch.zeros(int(first.max()) + 1).index_put((first,), has_signal(seen).float())
    lengths = seen["lengths"].float()
    if "entropy" in seen:  # not every engine tells
        metrics["entropy"] = _masked_mean(seen["entropy"], seen.mask)
    return metrics | {
        "length/mean": lengths.mean().item(),
        "length/max": lengths.max().item(),
        "truncated": seen["truncated"].float().mean().item(),
        "unscored": 1 - seen.scored.float().mean().item(),
        "groups/signal": signal.mean().item(),
        "groups/sampled": float(len(signal)),
        "groups/missing": float(collected.missing),
        "rounds": float(collected.rounds),
        "tokens/sampled": float(seen.mask.sum()),
    }


def _masked_mean(values: Tensor, mask: Tensor) -> float:
    return float(values[mask].mean()) if mask.any() else 0.0
