"""Whole runs from the Python API: what they leave behind, LoRA, precision, evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyopt
from polyopt.cli import main
from polyopt.diagnosis.evidence import WINDOW
from polyopt.diagnosis.live import LiveDoctor
from polyopt.errors import UserError
from polyopt.evaluation import interval, majority_right, pass_at_k, rates
from polyopt.models.loading import load_policy
from polyopt.run_folder import read_rows
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

NUMBERS = {**TINY_NUMBERS, "prompts.per_step": 2, "rollouts.per_prompt": 4}


def run_tiny(folder: Path, recipe: str = "grpo", **changes: Any) -> Any:
    settings: dict[str, Any] = {"steps": 2, "overrides": NUMBERS, "quiet": True, **changes}
    model = settings.pop("model", tiny_policy())
    return polyopt.train(model, tiny_task(), recipe, run=folder, **settings)


def test_a_run_leaves_its_recipe_metrics_rollouts_model_and_report(tmp_path: Path) -> None:
    result = run_tiny(tmp_path / "run", "dapo+ktae", log_rollouts_every=1)
    run = result.path
    description = json.loads((run / "run.json").read_text())
    assert description["expression"] == "dapo+ktae"
    assert {row["idea"] for row in description["pipeline"]} >= {"dapo", "ktae"}
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [1, 2]
    assert [row["phase"] for row in read_rows(run / "evals.jsonl")] == ["before", "after"]
    rows = read_rows(run / "rollouts" / "step-000001.jsonl")
    assert all(len(r["tokens"]) == len(r["advantages"]) == len(r["mask"]) for r in rows)
    assert "<html" in (run / "report.html").read_text().lower()
    assert (run / "model" / "model.safetensors").is_file()
    assert set(result.before) == set(result.after)


def test_a_finished_run_can_be_given_more_steps(tmp_path: Path) -> None:
    run_tiny(tmp_path / "run")
    again = run_tiny(tmp_path / "run", steps=4, resume=True)
    assert [row["step"] for row in read_rows(again.path / "metrics.jsonl")] == [1, 2, 3, 4]
    with pytest.raises(UserError, match="already holds a run"):
        run_tiny(tmp_path / "run")


def test_lora_trains_the_adapter_alone_and_needs_no_second_model(
    tmp_path: Path, model_folder: Path
) -> None:
    options = {"lora": 4, "chat_template": "none"}
    base = load_policy(str(model_folder), chat_template="none").model.state_dict()
    result = run_tiny(tmp_path / "run", model=str(model_folder), model_options=options)
    trained = result.policy.model.state_dict()
    lora = [name for name in trained if "lora_" in name]
    assert lora
    assert any(trained[name].abs().sum() > 0 for name in lora if "lora_B" in name)
    for name, weight in base.items():
        found = [v for n, v in trained.items() if n.endswith(name) or _plain(n).endswith(name)]
        assert any(torch.equal(v, weight) for v in found), name
    assert read_rows(result.path / "metrics.jsonl")[0]["kl_ref"] == pytest.approx(0, abs=1e-6)
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(result.path / "model")
    assert (result.path / "model" / "adapter").is_dir()


def _plain(name: str) -> str:
    return name.replace("base_layer.", "")


@pytest.mark.parametrize(
    "options",
    [{"dtype": "bfloat16"}, {"gradient_checkpointing": True}],
    ids=["bf16", "checkpointing"],
)
def test_precision_and_checkpointing_train(
    tmp_path: Path, model_folder: Path, options: dict[str, Any]
) -> None:
    options = {**options, "chat_template": "none"}
    result = run_tiny(tmp_path / "run", model=str(model_folder), model_options=options)
    for row in read_rows(result.path / "metrics.jsonl"):
        assert math.isfinite(row["grad_norm"])
        assert row["sampler_gap"] < 0.05


def test_eval_reports_rates_with_intervals(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model_folder: Path,
    data_file: Path,
    reward_file: Path,
) -> None:
    line = ["eval", "--model", str(model_folder), "--task", str(data_file), "--json"]
    line += ["--reward", f"{reward_file}:letter", "--chat-template", "none", "--samples", "4"]
    line += ["--max-tokens", "4", "--heldout-size", "4", "--save", str(tmp_path / "rows.jsonl")]
    assert main(line) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {"pass@1", "pass@2", "pass@4", "avg@4", "maj@4", "pass@1/low"} <= set(metrics)
    assert metrics["pass@1/low"] <= metrics["pass@1"] <= metrics["pass@1/high"]
    assert metrics["pass@1"] <= metrics["pass@2"] <= metrics["pass@4"]
    assert len(read_rows(tmp_path / "rows.jsonl")) == 16


def test_pass_at_k_is_the_unbiased_estimator() -> None:
    verdicts = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert pass_at_k(verdicts, 1).tolist() == [0.25, 0.5, 0.0, 1.0]
    assert pass_at_k(verdicts, 2) == pytest.approx([0.5, 1 - 1 / 6, 0.0, 1.0])
    assert pass_at_k(verdicts, 4).tolist() == [1.0, 1.0, 0.0, 1.0]


def test_majority_shares_ties() -> None:
    verdicts = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    answers = np.array([["4", "4", "5", "5"], ["4", "5", "5", "6"]], dtype=object)
    assert majority_right(verdicts, answers).tolist() == [0.5, 0.0]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for i in range(400):
        low, high = interval((draw.random(60) < 0.3).astype(float), seed=i)
        covered += low <= 0.3 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_a_prompt_nobody_could_score_leaves_the_rates() -> None:
    verdicts = np.array([[1.0], [np.nan], [0.0]])
    found = rates(verdicts, np.array([["a"], ["b"], ["c"]], dtype=object), seed=0)
    assert found["pass@1"] == 0.5
    assert found["unscored"] == pytest.approx(1 / 3)


def test_signs_are_said_once_and_name_the_way_out() -> None:
    doctor = LiveDoctor()
    said = [doctor.warnings(step, {"truncated": 0.9}) for step in range(3 * WINDOW)]
    spoken = [message for messages in said for message in messages]
    assert len(spoken) == 1
    assert "90% of rollouts are cut off" in spoken[0]
    assert "--max-tokens" in spoken[0]
    healthy = LiveDoctor()
    fine = {"truncated": 0.0, "groups/signal": 0.6, "sampler_gap": 1e-5, "unscored": 0.0}
    assert not any(healthy.warnings(step, fine) for step in range(50))
