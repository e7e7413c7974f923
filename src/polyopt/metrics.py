"""What every metric of a run means: one entry per name, for `docs/metrics.md` and the report.

A name with braces stands for many: `reward/{term}` is `reward/exact`, `reward/format`, ...; `{k}`
and `{n}` stand for numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SHARE = "share"
COUNT = "count"
SECONDS = "s"
NATS = "nats"
NUMBER = "number"

EVERY_STEP = "every step"
TRAINS = "steps with rollouts to train on"
UPDATE = "steps with an update"
RATIO = "surrogates that read the ratio"


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of them.

    Attributes:
        name: As in `metrics.jsonl`.
        unit: `share` lies in [0, 1]; `count` is a whole number from 0 on, though written as a
            float; `s` is seconds, from 0 on; `nats`, `tokens`, `tokens/s`, `number` are any number.
        meaning: What it measures.
        when: When it is there.
    """

    name: str
    unit: str
    meaning: str
    when: str = EVERY_STEP

    def fits(self, value: object) -> bool:
        """Whether a logged value has this metric's type; None (not finite) fits all."""
        if value is None:
            return True
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.unit == SHARE:
            return -1e-6 <= value <= 1 + 1e-6
        if self.unit == COUNT:
            return value >= 0 and value == int(value)
        return self.unit not in (SECONDS, "tokens", "tokens/s") or value >= 0


STEP = Metric("step", COUNT, "Training steps done, counted from 1")

ROLLOUTS = (
    Metric("reward/mean", NUMBER, "Mean total reward of the fresh rollouts, weighted terms added"),
    Metric("reward/{term}", NUMBER, "Mean of one reward term, before its weight"),
    Metric("accuracy", SHARE, "Share of scored fresh rollouts that are right",
           "tasks with a reward that says right or wrong"),
    Metric("entropy", NATS, "Mean entropy of the distribution at a sampled token",
           "engines that tell it; objectives with an entropy bonus put the trainer's in its place"),
    Metric("length/mean", "tokens", "Mean completion length"),
    Metric("length/max", "tokens", "Longest completion"),
    Metric("truncated", SHARE, "Share of rollouts cut off at the completion limit"),
    Metric("unscored", SHARE, "Share of rollouts that nobody could score"),
    Metric("groups/signal", SHARE,
           "Share of groups whose rewards differ; the others carry no group-relative credit"),
    Metric("groups/sampled", COUNT, "Groups sampled, all rounds together"),
    Metric("groups/missing", COUNT, "Groups that the step lacks after its last round"),
    Metric("rounds", COUNT, "Sampling rounds; above 1 where screens refill the batch"),
    Metric("tokens/sampled", COUNT, "Completion tokens sampled"),
)  # fmt: skip

TRAINED = (
    Metric("tokens/trained", COUNT, "Tokens in the loss", TRAINS),
    Metric("rollouts/trained", COUNT, "Rollouts with a token in the loss", TRAINS),
    Metric("groups/trained", COUNT, "Groups with a token in the loss", TRAINS),
    Metric("advantage/abs", NUMBER, "Mean size of a trained token's advantage", UPDATE),
    Metric("advantage/mean", NUMBER, "Mean advantage of trained tokens", UPDATE),
    Metric("advantage/{part}", NUMBER,
           "Mean size of the credit that one advantage part gives to trained tokens", UPDATE),
)  # fmt: skip

UPDATES = (
    Metric("updates", COUNT, "Optimizer steps taken; the metrics below are means over them",
           TRAINS),
    Metric("loss", NUMBER, "The objective; near 0 by construction for most", UPDATE),
    Metric("grad_norm", NUMBER, "Norm of the gradient before clipping", UPDATE),
    Metric("lr", NUMBER, "Learning rate", "updates by an optimizer"),
    Metric("skipped_updates", SHARE, "Share of optimizer steps left out: gradient not finite",
           "updates by an optimizer"),
    Metric("sampler_gap", NATS,
           "Mean size of the difference of the trainer's and the sampler's log-probability of a "
           "token", UPDATE),
    Metric("sampler_gap/{quantile}", NATS,
           "Quantiles of that difference, signed (p01 to p99), and its greatest size (max)",
           UPDATE),
    Metric("staleness/{of}", NUMBER,
           "Optimizer steps between the sampling of a rollout and its training: mean and max over "
           "trained rollouts", UPDATE),
    Metric("staleness/drift", NATS,
           "Mean size of the log-ratio of the policy to the sampler at tokens that earlier weights "
           "sampled", UPDATE),
    Metric("ratio/{quantile}", NUMBER,
           "Quantiles of the importance ratio over trained tokens (p01 to p99, max)", UPDATE),
    Metric("log_ratio/mean", NATS, "Mean log-ratio of the policy to the old one", RATIO),
    Metric("log_ratio/abs", NATS, "Mean size of the log-ratio", RATIO),
    Metric("log_ratio/bounded", SHARE, "Share of tokens whose log-ratio was held at +-20", RATIO),
    Metric("clip/high", SHARE, "Share of tokens clipped at the upper end", "clipped surrogates"),
    Metric("clip/low", SHARE, "Share of tokens clipped at the lower end", "clipped surrogates"),
    Metric("clip/dual", SHARE, "Share of tokens capped by the dual clip", "dual clip"),
    Metric("kl_ref", NATS, "KL to the reference policy, by the penalty's estimator",
           "a KL penalty"),
)  # fmt: skip

METHODS = (
    Metric("bellman/error", NUMBER, "Mean size of the Bellman residual", "rover"),
    Metric("blend/local", NUMBER, "Weight of the local loss", "copo"),
    Metric("clip_bound", NUMBER, "The batch's clip bound", "m2po-clip"),
    Metric("clip_range/low", NUMBER, "Lower end of the adaptive clip range", "bapo"),
    Metric("clip_range/high", NUMBER, "Upper end of the adaptive clip range", "bapo"),
    Metric("contrast/score", NUMBER, "Mean score that is contrasted", "disco"),
    Metric("critic/score", NUMBER, "Mean logit of a rollout being right", "pacs"),
    Metric("demonstration/ratio", NUMBER, "Mean ratio of demonstrated tokens", "rl-plus"),
    Metric("drift", NUMBER, "Mean drift penalty of a token", "discovered-drift"),
    Metric("fix_up/beta", NUMBER, "Weight of the KL term after its adaptation", "fixpo"),
    Metric("fix_up/kl", NATS, "KL to the old policy after the fix-up", "fixpo"),
    Metric("flow/residual", NUMBER, "Mean size of the flow balance's residual", "flowrl"),
    Metric("flow/weight", NUMBER, "Mean importance weight of a rollout", "flowrl"),
    Metric("held", SHARE, "Share of tokens whose ratio is held, gradient kept", "gppo"),
    Metric("kl_cov", NATS, "Mean size of the log-ratio at the penalised tokens", "kl-cov"),
    Metric("kl_old", NATS, "KL to the old policy", "disco, and trust regions by KL"),
    Metric("kl_teacher", NATS, "KL to the teacher", "kdrl"),
    Metric("likelihood", NATS, "Mean log-likelihood of the rollouts imitated", "grao"),
    Metric("mask/clip", SHARE, "Share of tokens masked out past the clip range",
           "ideas that mask by the clip range"),
    Metric("mask/covariance", SHARE, "Share of tokens masked out by covariance", "clip-cov"),
    Metric("mask/ratio", SHARE, "Share of tokens masked out by their ratio", "rec-ring"),
    Metric("mask/second_moment", SHARE, "Share of tokens masked out to bound the second moment",
           "m2po"),
    Metric("nft/floor", SHARE, "Share of tokens whose negative likelihood is at its floor", "nft"),
    Metric("past", SHARE, "Share of tokens past their turning point", "spo-simple"),
    Metric("preference/gap", NUMBER, "Mean gap between the preferred and the other rollout",
           "trpa"),
    Metric("regression/error", NUMBER, "Mean size of the regression's residual",
           "ideas that regress on rewards"),
    Metric("softmax/weight", NUMBER, "Mean softmax weight of a rollout", "haepo"),
    Metric("step_pull", NUMBER, "Mean pull on the log-probability towards the old policy",
           "cpgd, rpg"),
    Metric("trpo/backtracks", NUMBER, "Times the step was shortened; -1 if it was given up",
           "trpo"),
    Metric("trpo/step", NUMBER, "Norm of the full natural-gradient step", "trpo"),
    Metric("value/error", NUMBER, "Mean loss of the value head", "ideas with a value head"),
    Metric("value/mean", NUMBER, "Mean value said by the value head", "ideas with a value head"),
    Metric("weight/bounded", SHARE, "Share of importance weights that were bounded",
           "bounded importance weights"),
)  # fmt: skip

TIMES = (
    Metric("seconds/step", SECONDS, "Time of the whole training step"),
    Metric("seconds/{stage}", SECONDS,
           "Time of one stage. `evaluate` and `checkpoint` fall between steps and are not part of "
           "`seconds/step`: they stand in the row of the step after", "where the stage ran"),
    Metric("tokens_per_second", "tokens/s", "Sampled tokens over the time of the whole step"),
)  # fmt: skip

EVALUATION = (
    Metric("step", COUNT, "Training steps done before the evaluation"),
    Metric("pass@{k}", SHARE, "Chance that one of k completions is right, unbiased estimator",
           "powers of two up to the number of samples, and that number"),
    Metric("avg@{n}", SHARE, "Share of right completions, over all samples", "several samples"),
    Metric("maj@{n}", SHARE, "Share of prompts whose most frequent answer is right",
           "several samples"),
    Metric("{rate}/low", SHARE, "Lower end of the rate's 95% interval over prompts", "each rate"),
    Metric("{rate}/high", SHARE, "Upper end", "each rate"),
    Metric("prompts", COUNT, "Held-out prompts"),
    Metric("samples", COUNT, "Completions per prompt"),
    Metric("length/mean", "tokens", "Mean completion length"),
    Metric("length/max", "tokens", "Longest completion"),
    Metric("truncated", SHARE, "Share of completions cut off at the limit"),
    Metric("unscored", SHARE, "Share of prompts left out: a completion could not be scored"),
)  # fmt: skip

TRAINING: Mapping[str, tuple[Metric, ...]] = {
    "Fresh rollouts": (STEP, *ROLLOUTS),
    "What trains": TRAINED,
    "Updates": UPDATES,
    "Methods": METHODS,
    "Time": TIMES,
}
"""Metrics of `metrics.jsonl` by what they are about."""


def metric(name: str, metrics: tuple[Metric, ...] | None = None) -> Metric | None:
    """The entry for a name; a name in full goes before a family. None if it isn't documented.

    Args:
        name: As logged.
        metrics: Where to look; all metrics of training by default.
    """
    known = metrics or tuple(entry for group in TRAINING.values() for entry in group)
    exact = (entry for entry in known if entry.name == name)
    family = (entry for entry in known if "{" in entry.name and _stands_for(entry.name, name))
    return next(exact, None) or next(family, None)


def explanation(name: str) -> str:
    """A sentence for a chart of a metric; empty if it isn't documented."""
    found = metric(name)
    if found is None:
        return ""
    unit = "" if found.unit in (SHARE, COUNT, NUMBER) else f", in {found.unit}"
    return f"{name}: {found.meaning}{unit}"


def _stands_for(pattern: str, name: str) -> bool:
    pieces = re.split(r"(\{\w+\})", pattern)
    places = {"{k}": r"\d+", "{n}": r"\d+"}
    texts = [
        places.get(piece, ".+") if piece.startswith("{") else re.escape(piece) for piece in pieces
    ]
    return re.fullmatch("".join(texts), name) is not None
