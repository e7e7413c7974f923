"""A recipe in TRL's trainer is the recipe in polyopt's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyopt.ideas import build
from polyopt.parts import HasState, walk
from tests.adapters.messages import message
from tests.adapters.trl_runs import (
    GROUP,
    SUMS,
    WIDTH,
    batch_of,
    credited,
    embedded,
    learned,
    trainer,
)

NUMBERS = {"rollouts.max_tokens": WIDTH, "rollouts.per_prompt": GROUP}
EXPRESSIONS = ["grpo", "dapo+ktae", "dr-grpo", "gspo", "rloo", "clip-cov", "rebel"]
TOLERANCE = 1e-6


def relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Largest difference as a share of the largest gradient."""
    scale = max(float(g.abs().max()) for g in theirs)
    assert scale > 0
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / scale


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_loss_and_gradient_are_those_of_polyopts_learner(
    expression: str, accumulation: int, tmp_path: Path
) -> None:
    run = trainer(
        expression,
        tmp_path,
        gradient_accumulation_steps=accumulation,
        per_device_train_batch_size=16 // accumulation,
    )
    run.train()
    recipe, policy = build(expression, NUMBERS), embedded()
    batch = credited(recipe, batch_of(run.generated[0], policy))
    loss, grads = learned(recipe, batch, policy)
    (step,) = run.steps
    assert abs(step["loss"] - loss) < TOLERANCE
    assert relative(grads, step["grads"]) < TOLERANCE


def test_a_later_step_on_the_same_rollouts_has_ratios_to_the_weights_that_sampled(
    tmp_path: Path,
) -> None:
    run = trainer("dapo", tmp_path, num_iterations=2, max_steps=2)
    run.train()
    assert len(run.generated) == 1
    first, second = run.state.log_history[:2]
    assert first["log_ratio/abs"] == 0
    assert second["log_ratio/abs"] > 1e-3


def test_two_steps_of_a_generation_have_coefficients_of_their_own(tmp_path: Path) -> None:
    run = trainer(
        "dapo",
        tmp_path,
        per_device_train_batch_size=4,
        steps_per_generation=4,
        max_steps=2,
    )
    run.train()
    assert len(run.generated) == 1
    for window in run._windows():
        total = sum(float(inputs["polyopt_part"]["coefficients"].sum()) for inputs in window)
        assert total == pytest.approx(1.0)


def test_the_logged_advantages_are_those_that_train(tmp_path: Path) -> None:
    run = trainer("rloo", tmp_path)
    run.train()
    (made,) = run.generated
    mask = made["completion_mask"]
    trained = made["advantages"].sum(1) / mask.sum(1)
    rewards = made["rewards"].reshape(-1, GROUP)
    others = (rewards.sum(1, keepdim=True) - rewards) / (GROUP - 1)
    assert torch.allclose(trained, (rewards - others).flatten(), atol=1e-6)
    assert torch.allclose(torch.tensor(list(run._logs["advantages"])), trained)
    assert made["advantages"].shape == made["completion_ids"].shape


def test_a_rollout_that_no_reward_function_scores_gets_no_credit(tmp_path: Path) -> None:
    def moody(completions: Sequence[str], **_: Any) -> list[float | None]:
        return [None if i == 2 else float(i % 3) for i in range(len(completions))]

    run = trainer("grpo", tmp_path, reward_funcs=moody)
    run.train()
    (made,) = run.generated
    assert torch.equal(made["advantages"][2], torch.zeros_like(made["advantages"][2]))
    assert made["advantages"][:2].any()


def test_groups_that_a_screen_leaves_out_are_not_in_the_loss(tmp_path: Path) -> None:
    def half(completions: Sequence[str], **_: Any) -> list[float]:
        return [0.0 if i < 8 else float(i % 2) for i in range(len(completions))]

    run = trainer("dapo", tmp_path, reward_funcs=half)
    run.train()
    kept = torch.cat([inputs["polyopt_part"].rollout for inputs in run._windows()[0]])
    assert sorted(kept.tolist()) == list(range(8, 16))
    log = run.state.log_history[0]
    assert log["rollouts/trained"] == 8


def test_a_step_without_anything_to_train_on_changes_nothing(tmp_path: Path) -> None:
    run = trainer("dapo", tmp_path, reward_funcs=lambda completions, **_: [0.0] * len(completions))
    run.train()
    assert run.steps[0]["loss"] == 0
    assert not any(grad.any() for grad in run.steps[0]["grads"])


def test_columns_of_the_data_set_reach_the_parts(tmp_path: Path) -> None:
    run = trainer("grpo", tmp_path, columns={"answer": list(range(len(SUMS)))})
    run.train()
    answers = [prompt.answer for prompt in run._credited.prompts]
    assert [SUMS[a] for a in answers] == [prompt.text for prompt in run._credited.prompts]


def test_memory_of_parts_is_in_the_checkpoint(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    run = trainer("dcpo", tmp_path, **changes)
    run.train()
    resumed = trainer("dcpo", tmp_path, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    remembered, again = (
        [item.state_dict() for _, item in walk(r.recipe.advantages) if isinstance(item, HasState)]
        for r in (run, resumed)
    )
    assert len(remembered) == 1
    assert str(remembered) == str(again)
    assert resumed._rollouts == run._rollouts == 32


# --- what TRL can't do ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("dapo+greso", ["'greso'", "prompts.filters[0]", "chooses the prompts"]),
        ("treerpo", ["'segment-tree-sampling'", "rollouts.sampler", "samples the completions"]),
        ("grpo+rlep", ["'rlep'", "replay.buffer", "keeps no past rollouts"]),
        ("trpo", ["'trpo'", "updates.rule", "takes the optimizer steps"]),
        ("ppo", ["'ppo'", "evaluation:values"]),
        ("gigpo", ["'gigpo'", "'step'"]),
    ],
)
def test_a_recipe_that_needs_more_than_trl_gives_is_an_error(
    expression: str, words: list[str], tmp_path: Path
) -> None:
    said = message(lambda: trainer(expression, tmp_path))
    assert all(word in said for word in [*words, f"polyopt train {expression}"]), said


def test_a_field_that_would_define_the_loss_a_second_time_is_an_error(tmp_path: Path) -> None:
    said = message(lambda: trainer("dapo", tmp_path, loss_type="grpo"))
    assert "loss_type='grpo'" in said
    assert "polyopt show dapo" in said


def test_another_number_of_rollouts_than_an_idea_claims_is_an_error(tmp_path: Path) -> None:
    said = message(lambda: trainer("two-grpo", tmp_path))
    assert "num_generations=2" in said


def test_an_optimizer_step_over_two_generations_is_an_error(tmp_path: Path) -> None:
    said = message(lambda: trainer("dapo", tmp_path, steps_per_generation=1))
    assert "gradient_accumulation_steps=2" in said


def test_an_idea_that_needs_a_column_of_the_data_says_which(tmp_path: Path) -> None:
    run = trainer(build("a-star-po", {"rollouts.per_prompt": 2}), tmp_path)
    said = message(run.train)
    assert "reference_rewards" in said
    assert "prompt" in said


def test_without_trl_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['trl'] = None; import polyopt.adapters.trl"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "pip install" in found.stderr
