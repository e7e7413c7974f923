"""`Trainer`: the training loop's one step, as the algorithm box of a paper."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyopt.batch import Batch
from polyopt.collector import Collected, Collector, rollout_metrics
from polyopt.columns import COMPUTED
from polyopt.computed_columns import ComputedColumns
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import Engine, Rests
from polyopt.errors import DataError, UserError
from polyopt.models.memory import keep_freed_memory
from polyopt.models.policy import Policy
from polyopt.models.value_head import ValueHead
from polyopt.parts import HasState, info_of, walk
from polyopt.prompts.queue import PromptQueue
from polyopt.recipe import Recipe
from polyopt.seeding import generator
from polyopt.stopwatch import Stopwatch
from polyopt.tasks.task import Task
from polyopt.updates.boundary_record import BoundaryRecord
from polyopt.updates.learner import Learner


@dataclass(frozen=True)
class StepResult:
    """What one training step did.

    Attributes:
        metrics: Numbers to log, by name.
        trained: The batch that trained, with its advantages; None if nothing was left to train on.
        collected: All fresh rollouts.
    """

    metrics: dict[str, float]
    trained: Batch | None
    collected: Collected


class Trainer:
    """A policy, a task and a recipe; `step()` improves the policy once.

    Args:
        policy: What is trained.
        task: Prompts and reward terms.
        recipe: What to do; its parts are copied, so a recipe can serve several trainers.
        steps: Training steps planned, for the learning-rate schedule.
        seed: Every random draw of the run derives from it.
        engine: Samples completions; by default in this process, from the policy's own module.
        teacher: A frozen policy with the same vocabulary, for ideas that need `logp_teacher`.
        second: A second model of the policy's architecture, for ideas that make the reference of
            both.

    Raises:
        RecipeError: The recipe can't be built.
        DataError: The task lacks what a part needs, or a prompt leaves no room for a completion.
    """

    def __init__(
        self,
        policy: Policy,
        task: Task,
        recipe: Recipe,
        *,
        steps: int,
        seed: int = 0,
        engine: Engine | None = None,
        teacher: Policy | None = None,
        second: Policy | None = None,
    ) -> None:
        if policy.device.type == "cpu":
            keep_freed_memory()
        self.policy, self.task, self.seed, self.teacher = policy, task, seed, teacher
        self.recipe = copy.deepcopy(recipe.check())
        _check_metadata(self.recipe, task)
        if "logp_teacher" in self.recipe.needs() and teacher is None:
            raise UserError(
                f"{self.recipe.name!r} needs a teacher: give one with --teacher MODEL "
                "(train(..., teacher=...) in Python); it must have the policy's vocabulary."
            )
        _check_given(self.recipe)
        check_lengths(policy, task, self.recipe.rollouts.max_tokens)
        rollouts, updates = self.recipe.rollouts, self.recipe.updates
        self.needs = self._needs_before_update()
        self.columns = ComputedColumns(policy, teacher, rollouts.distribution, updates.micro_tokens)
        if "logp_ref" in self.recipe.needs():
            policy.prepare_reference(self._reference_weights(second))
        if self.recipe.needs() & {"values", "evaluation:values"}:
            policy.value_head = policy.value_head or fresh_value_head(policy)
        self.engine = engine or LocalEngine(policy.model, policy.decode)
        self.engine.sync(policy)
        self.clock = Stopwatch()
        queue = PromptQueue(self.recipe.prompts, task.train, rollouts.per_prompt, seed)
        self.collector = Collector(
            policy,
            self.engine,
            task,
            self.recipe,
            queue,
            self.clock,
            seed,
            reference=self._reference_engine(),
        )
        self.learner = Learner(
            policy,
            self.recipe.objective,
            updates.optimizer,
            updates.schedule,
            distribution=rollouts.distribution,
            micro_tokens=updates.micro_tokens,
            total_steps=steps * updates.rule.steps,
        )
        self.done = 0

    def step(self) -> StepResult:
        """Prompts, rollouts, rewards, replay, advantages, selection, objective, update."""
        with self.clock("step"):
            with self.policy.recording(self.recipe.updates.micro_tokens):
                collected = self.collector.collect(self.done)
            metrics = rollout_metrics(collected)
            batch = self._replay(collected)
            if batch is not None:
                batch = self._with_columns(batch)
                batch = self._assign_credit(batch)
                batch = self._select(batch)
                batch, updated = self._update(batch)
                metrics |= updated
            self.done += 1
        return StepResult(metrics | self._speed(metrics), batch, collected)

    def _replay(self, collected: Collected) -> Batch | None:
        """Mix past rollouts in, and keep what is worth keeping of the fresh ones."""
        buffer, batch = self.recipe.replay.buffer, collected.kept
        if buffer is None:
            return batch
        if batch is not None:
            batch = buffer.mix(batch, generator(self.seed, self.done, "replay"))
        buffer.store(collected.seen)
        return batch

    def _with_columns(self, batch: Batch) -> Batch:
        """The columns that some part reads before the update, and no others.

        Old log-probabilities are computed only if a part outside the objective reads them or the
        batch takes several optimizer steps; else the batch is on-policy.
        """
        several = {"logp_old"} if self.recipe.updates.rule.steps > 1 else set()
        with self.clock("columns"):
            return self.columns.add(batch, self.needs | several)

    def _assign_credit(self, batch: Batch) -> Batch:
        with self.clock("advantages"):
            for shaping in self.recipe.rewards.shaping:
                batch = shaping(batch)
            return self.recipe.advantages(batch)

    def _select(self, batch: Batch) -> Batch:
        with self.clock("selection"):
            for part in self.recipe.selection.parts:
                batch = part(batch)
        return batch

    def _update(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Optimizer steps on the batch.

        Returns the batch with the columns `ratio` and `loss_weight` (see `BoundaryRecord`), and
        metrics: averaged over the steps, their distributions, and what was trained.
        """
        trained = trained_metrics(batch)
        if not batch.loss_mask.any():
            return batch, trained | {"updates": 0.0}
        self.learner.record = record = BoundaryRecord()
        if isinstance(self.engine, Rests):
            self.engine.rest()
        with self.clock("update"):
            draws = generator(self.seed, self.done, "updates")
            steps = self.recipe.updates.rule(self.learner, record.numbered(batch), draws)
        with self.clock("sync"):
            self.engine.sync(self.policy)
        metrics = trained | over_steps(steps) | record.metrics() | {"updates": float(len(steps))}
        return batch.replace(**record.columns(batch)), metrics

    def _speed(self, metrics: Mapping[str, float]) -> dict[str, float]:
        lap = self.clock.lap()
        return lap | {"tokens_per_second": metrics["tokens/sampled"] / lap["seconds/step"]}

    def _reference_weights(self, second: Policy | None) -> dict[str, torch.Tensor] | None:
        """Weights of the reference, where it isn't the policy as it is now."""
        make = self.recipe.updates.reference
        if make is None:
            return None
        if second is None:
            raise UserError(
                f"{self.recipe.name!r} makes the reference of two models: give the second, of the "
                "same architecture, with --second MODEL (train(..., second=...) in Python)."
            )
        return make(self.policy.model.state_dict(), second.model.state_dict())

    def _reference_engine(self) -> Engine | None:
        """An engine on a frozen copy of the present weights, if a measurement samples from it."""
        measurements = self.recipe.rollouts.measurements
        if not any(getattr(sampler, "samples_reference", False) for sampler in measurements):
            return None
        return LocalEngine(copy.deepcopy(self.policy.model), self.policy.decode)

    def _needs_before_update(self) -> frozenset[str]:
        """Columns read by parts outside the objective: they must be there before the update."""
        parts = [item for path, item in walk(self.recipe) if not path.startswith("objective")]
        infos = [info_of(item) for item in parts]
        needs = frozenset(name for info in infos if info for name in info.needs)
        return needs | (self.recipe.objective.needs & (COMPUTED | {"values"}) - {"logp_old"})

    def state_dict(self) -> dict[str, Any]:
        """Everything with memory except the policy's weights."""
        parts = {
            p: item.state_dict() for p, item in walk(self.recipe) if isinstance(item, HasState)
        }
        return {
            "done": self.done,
            "version": self.policy.version,
            "parts": parts,
            "collector": self.collector.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "scheduler": self.learner.scheduler.state_dict(),
            "trusts_sampler": self.learner.trusts_sampler,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the policy's weights are already back in place."""
        self.done, self.policy.version = state["done"], state["version"]
        for path, item in walk(self.recipe):
            if isinstance(item, HasState):
                item.load_state_dict(state["parts"][path])
        self.collector.load_state_dict(state["collector"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.learner.scheduler.load_state_dict(state["scheduler"])
        self.learner.trusts_sampler = state["trusts_sampler"]
        self.engine.sync(self.policy)


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of several optimizer steps: their mean, of `.../max` the largest."""
    found = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        found[name] = max(values) if name.endswith("/max") else sum(values) / len(values)
    return found


def trained_metrics(batch: Batch) -> dict[str, float]:
    """What trains: rollouts, groups, tokens, and the size of each advantage part's credit."""
    mask = batch.loss_mask
    live = mask.any(1)
    metrics = {
        "tokens/trained": float(mask.sum()),
        "rollouts/trained": float(len(torch.unique(batch.rollout[live]))),
        "groups/trained": float(len(torch.unique(batch.group[live]))),
    }
    if mask.any():
        metrics["advantage/abs"] = float(batch["advantages"][mask].abs().mean())
        metrics["advantage/mean"] = float(batch["advantages"][mask].mean())
        for name, column in batch.columns.items():
            if name.startswith("advantages/"):
                part = name.removeprefix("advantages/")
                metrics[f"advantage/{part}"] = float(column[mask].abs().mean())
    return metrics


def _check_given(recipe: Recipe) -> None:
    """Raise for the first column that only an environment can give."""
    for name, meaning in recipe.given().items():
        raise UserError(
            f"{recipe.name!r} needs the column {name!r} ({meaning}), which comes from an "
            "environment. Give it with a part of your own in rollouts.annotations that provides "
            f"{name!r}, or drop the idea that needs it (`polyopt show {recipe.name}`)."
        )


def check_lengths(policy: Policy, task: Task, max_tokens: int) -> None:
    """Raise DataError for the first prompt that leaves no room for `max_tokens` in the context."""
    context = getattr(policy.model.config, "max_position_embeddings", None)
    if context is None:
        return
    for prompt in [*task.train, *task.heldout]:
        length = len(policy.encode(prompt, "", task.system))
        if length + max_tokens > context:
            raise DataError(
                f"prompt {prompt.id!r} has {length} tokens, which with max_tokens={max_tokens} "
                f"exceeds the model's context of {context}. Lower --max-tokens to at most "
                f"{max(context - length, 0)}, or leave the prompt out (nothing is cut silently)."
            )


def fresh_value_head(policy: Policy) -> ValueHead:
    """A value head that says 0 everywhere, on the policy's device."""
    return ValueHead(policy.model.config.hidden_size).to(policy.device)


def _check_metadata(recipe: Recipe, task: Task) -> None:
    wanted = {need.removeprefix("metadata:") for need in recipe.needs() if "metadata:" in need}
    for name in sorted(wanted):
        if task.train and name not in task.train[0].metadata:
            have = ", ".join(sorted(task.train[0].metadata)) or "none"
            raise DataError(
                f"{recipe.name!r} needs {name!r} with every prompt, but the prompts of "
                f"{task.name!r} don't have it (they have: {have}). Add a column {name!r} to the "
                "data, or drop the idea that needs it."
            )
