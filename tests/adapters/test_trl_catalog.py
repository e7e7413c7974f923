"""Every idea of the catalog in TRL's trainer: the numbers of polyopt's learner, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.errors import UserError
from polyopt.ideas import build, load_catalog
from polyopt.models.policy import Policy
from polyopt.recipe import Recipe
from tests.adapters.trl_runs import GROUP, SUMS, WIDTH, batch_of, credited, learned, trainer
from tests.tiny import LETTERS, tiny_policy

trl = pytest.importorskip("trl", reason="TRL isn't installed: `make peers`")

DOCS = Path(__file__).parents[2] / "docs" / "other-trainers.md"
TOLERANCE, IN_SINGLE_PRECISION = 1e-5, 1e-4
DATA = {"solution": ["ab"] * len(SUMS), "reference_rewards": [[0, 0, 1, 0]] * len(SUMS)}
"""Columns that some ideas read of each prompt."""


def refusal(expression: str) -> str:
    """What the adapter says against an expression; empty if nothing."""
    from polyopt.adapters.trl_config import agreed

    try:
        agreed(expression, None, trl.GRPOConfig)
    except UserError as error:
        return str(error)
    return ""


def test_every_refusal_names_the_part_the_idea_and_the_way_out() -> None:
    refused = {name: said for name in load_catalog() if (said := refusal(name))}
    assert 0 < len(refused) < len(load_catalog()) / 3
    for name, said in refused.items():
        assert "TRL's trainer" in said, name
        assert "from " in said, name
        assert f"polyopt train {build(name).name}" in said, name


def test_the_docs_say_how_many_ideas_run_in_trl() -> None:
    catalog = load_catalog()
    running = sum(not refusal(name) for name in catalog)
    said = f"{running} of the {len(catalog)} ideas of the catalog run in TRL"
    assert said in " ".join(DOCS.read_text().split())


@pytest.mark.parametrize("expression", sorted(load_catalog()))
def test_an_idea_trains_with_polyopts_numbers_or_is_refused(
    expression: str, tmp_path: Path
) -> None:
    if refusal(expression):
        return
    recipe = build(expression, {"rollouts.max_tokens": WIDTH})
    size = recipe.rollouts.per_prompt if claimed(recipe) else GROUP
    policy = letters()
    letters(1).model.save_pretrained(tmp_path / "model")  # where TRL finds the reference
    policy.model.config._name_or_path = str(tmp_path / "model")
    run = trainer(
        expression,
        tmp_path,
        policy,
        DATA,
        reward_funcs=even,
        num_generations=size,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
    )
    run.train()
    (step,) = run.steps
    made = batch_of(run.generated[0], letters(), size)
    loss, grads = learned(recipe, credited(recipe, with_columns(made, letters())), letters())
    tolerance = IN_SINGLE_PRECISION if reads_entropy(recipe) else TOLERANCE
    assert abs(step["loss"] - loss) < tolerance * max(abs(loss), 1)
    if not grads:  # a loss without a gradient
        assert not any(grad.any() for grad in step["grads"])
        return
    scale = max(float(g.abs().max()) for g in step["grads"]) or 1.0
    for ours, theirs in zip(grads, step["grads"], strict=True):
        assert float((ours - theirs).abs().max()) < tolerance * scale


def reads_entropy(recipe: Recipe) -> bool:
    """Whether some part reads entropies, which TRL gives in single precision."""
    return bool({"entropy", "evaluation:entropy"} & recipe.needs())


def even(completions: Sequence[str], **_: Any) -> list[float]:
    """Rewards of 0 and 1 that differ within most groups."""
    return [float(sum(map(ord, text)) % 2 == 0) for text in completions]


def claimed(recipe: Recipe) -> bool:
    """Whether an idea is about the number of rollouts of a prompt."""
    origin = recipe.origins.get("rollouts.per_prompt")
    return origin is not None and origin.claimed


def letters(seed: int = 0) -> Policy:
    """A tiny model in double precision; the prompts are written in its letters."""
    assert set("".join(SUMS)) <= set(LETTERS)
    policy = tiny_policy(seed)
    policy.model.double()
    return policy


def with_columns(batch: Batch, policy: Policy) -> Batch:
    """What polyopt's sampler and trainer would have said of each token."""
    found = policy.evaluate_all(batch, Distribution(), {"entropy"}, 100_000)
    assert found.entropy is not None
    columns: dict[str, Any] = {"logp_sampler": found.logp, "entropy": found.entropy}
    return batch.replace(
        **columns,
        logp_old=found.logp,
        logp_ref=letters(1).evaluate_all(batch, Distribution(), (), 100_000).logp,
        provenance=torch.where(batch.mask, 0, -3),
    )
