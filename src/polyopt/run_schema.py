"""The other files of a run folder, field by field, for `docs/metrics.md`."""

from __future__ import annotations

from dataclasses import dataclass

PRESENT = "always"


@dataclass(frozen=True)
class Field:
    """One field of a row or of `run.json`.

    Attributes:
        name: Its key.
        kind: Its JSON type.
        meaning: What it holds.
        when: When it is there.
    """

    name: str
    kind: str
    meaning: str
    when: str = PRESENT


RUN = (
    Field("polyopt", "string", "Version that started the run"),
    Field("expression", "string", "The recipe's expression"),
    Field("model", "string", "What was given as `--model`, or the type of a model in memory"),
    Field("task", "string", "The task's name"),
    Field("seed", "number", "Every random draw derives from it"),
    Field("steps", "number", "Training steps planned"),
    Field("started", "string", "Local time of the start, ISO 8601"),
    Field("arguments", "object", "Arguments of `polyopt.train`, with which the run is resumed"),
    Field("pipeline", "array", "The resolved recipe: a row per part, with its numbers and paper"),
    Field("batch", "object", "Batch arithmetic: prompts, rollouts, optimizer steps per step"),
    Field("prompts", "object", "How many prompts train, how many are held out, and which are both"),
)

ROLLOUT = (
    Field("step", "number", "Training steps done"),
    Field("phase", "string", "`train`, `before` or `after`"),
    Field("prompt_id", "string", "The prompt's id in the task"),
    Field("prompt", "string", "The prompt"),
    Field("completion", "string", "The completion, decoded"),
    Field("answer", "string", "The task's answer"),
    Field("reward", "number", "Total reward; null if nobody could score it"),
    Field("terms", "object", "Each reward term by name"),
    Field("accuracy", "number", "1 right, 0 wrong; null without a term that says so"),
    Field("finish", "string", "`stop`, or `length` if it was cut off"),
    Field("tokens", "array of strings", "Each token's text"),
    Field("mask", "array of numbers", "1 where the policy sampled the token"),
    Field("group", "number", "The group's id in the run", "`train`"),
    Field("rollout", "number", "The rollout's id in the run", "`train`"),
    Field("advantages", "array of numbers", "Each token's credit", "`train`"),
    Field("logp", "array of numbers", "The sampler's log-probability of each token, nats"),
    Field("entropy", "array of numbers", "Entropy at each token, nats",
          "`train`, engines that tell it"),
    Field("advantages/{part}", "array of numbers", "One part's share of that credit",
          "`train`, where several parts give credit"),
    Field("ratio", "array of numbers", "Each token's importance ratio", "`train`"),
    Field("loss_weight", "array of numbers",
          "Minus the loss's gradient at each token's log-probability", "`train`"),
)  # fmt: skip
