"""Signs on hand-made records: what each needs, and what must not trigger it."""

from __future__ import annotations

from typing import Any

import pytest

from polyopt.diagnosis import Evidence, Finding, all_signs, diagnose
from polyopt.diagnosis.evidence import LoggedRollout, halves, width
from polyopt.diagnosis.live import LiveDoctor
from polyopt.diagnosis.steps import trend
from polyopt.ideas import load_catalog


def record(steps: int = 40, **courses: Any) -> Evidence:
    """A record whose metrics are numbers, or functions of the share of the run that is done."""
    rows = []
    for i in range(steps):
        row: dict[str, Any] = {"step": i + 1}
        for name, course in courses.items():
            name = name.replace("__", "/")
            row[name] = course(i / (steps - 1)) if callable(course) else course
        rows.append(row)
    return Evidence(rows)


def found(run: Evidence) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(run)}


def rollout(**fields: Any) -> LoggedRollout:
    plain: dict[str, Any] = {"step": 1, "phase": "train", "prompt_id": "p", "prompt": "1+1="}
    return LoggedRollout(**{**plain, "completion": "2", **fields})


def test_every_sign_names_ideas_of_the_catalog_and_what_to_try() -> None:
    catalog = load_catalog()
    for sign in all_signs():
        assert set(sign.ideas) <= set(catalog), sign.name
        assert sign.remedy.endswith("."), sign.name
        assert sign.look.__doc__, sign.name


def test_an_empty_record_has_no_findings() -> None:
    assert diagnose(Evidence([])) == []
    assert diagnose(record(3, accuracy=0.0)) == []


def test_no_signal_is_a_collapse_unless_it_was_learned_away() -> None:
    assert "advantage-collapse" in found(record(groups__signal=0.02, accuracy=0.0))
    assert "advantage-collapse" in found(record(groups__signal=0.02, accuracy=1.0))
    learned = record(groups__signal=lambda t: 1 - t, accuracy=lambda t: min(0.2 + t, 1.0))
    assert "advantage-collapse" not in found(learned)


def test_entropy_may_fall_when_the_task_is_learned() -> None:
    def falling(t: float) -> float:
        return 1.0 - 0.99 * t

    assert "entropy-collapse" in found(record(entropy=falling, accuracy=0.3))
    learned = record(entropy=falling, accuracy=lambda t: 0.3 + 0.7 * t)
    assert "entropy-collapse" not in found(learned)


def test_longer_completions_that_are_right_more_often_are_fine() -> None:
    def growing(t: float) -> float:
        return 100 + 200 * t

    assert "length-inflation" in found(record(length__mean=growing, accuracy=0.3))
    better = record(length__mean=growing, accuracy=lambda t: 0.3 + 0.3 * t)
    assert "length-inflation" not in found(better)


def test_a_gap_from_the_first_step_is_a_mismatch_and_a_growing_one_is_staleness() -> None:
    at_once = found(record(sampler_gap=0.2))
    assert "sampler-mismatch" in at_once
    assert "stale-data" not in at_once
    growing = found(record(sampler_gap=lambda t: 0.4 * t))
    assert "stale-data" in growing
    assert "sampler-mismatch" not in growing


def test_clipping_on_one_side_is_told_from_clipping_everywhere() -> None:
    assert "one-sided-clipping" in found(record(clip__high=0.001, clip__low=0.05))
    both = found(record(clip__high=0.3, clip__low=0.3))
    assert "clip-saturation" in both
    assert "one-sided-clipping" not in both
    assert not found(record(clip__high=0.004, clip__low=0.0))


def test_gradients_are_judged_where_there_is_something_to_learn() -> None:
    spiky = record(grad_norm=lambda t: 50.0 if 0.5 < t < 0.6 else 1.0, groups__signal=0.5)
    assert "gradient-spikes" in found(spiky)
    # The last signal of a learned task looks huge beside gradients of 0.
    learned = record(
        grad_norm=lambda t: 1.0 if t < 0.4 or 0.8 < t < 0.83 else 1e-4,
        groups__signal=lambda t: 0.8 if t < 0.4 or 0.8 < t < 0.83 else 0.0,
    )
    assert "gradient-spikes" not in found(learned)


def test_a_rate_of_zero_and_a_policy_that_stays_on_its_reference_are_dead() -> None:
    assert "dead-learning-rate" in found(record(lr=0.0, groups__signal=0.5))
    still = found(record(lr=1e-9, kl_ref=1e-9, groups__signal=0.5))
    assert "dead-learning-rate" in still
    moving = record(lr=1e-6, kl_ref=lambda t: 0.01 * t, groups__signal=0.5)
    assert "dead-learning-rate" not in found(moving)


def test_a_term_that_rises_without_accuracy_is_named() -> None:
    run = record(
        reward__mean=lambda t: 0.3 + t,
        reward__polite=lambda t: t,
        reward__accuracy=0.3,
        accuracy=0.3,
    )
    assert "reward/polite" in found(run)["reward-terms-disagree"].symptom.message


def test_held_out_accuracy_must_follow_beyond_its_interval() -> None:
    run = record(accuracy=lambda t: 0.2 + 0.6 * t)
    few = [{"step": s, "pass@1": 0.3, "pass@1/low": 0.0, "pass@1/high": 0.8} for s in (0, 40)]
    many = [{"step": s, "pass@1": 0.3, "pass@1/low": 0.25, "pass@1/high": 0.35} for s in (0, 40)]
    assert "heldout-flat" not in found(Evidence(run.metrics, few))
    assert "heldout-flat" in found(Evidence(run.metrics, many))


def test_training_since_the_last_evaluation_is_not_held_against_it() -> None:
    rows = record(accuracy=lambda t: 0.2 + 0.6 * t).metrics
    evals = [{"step": s, "pass@1": 0.3, "pass@1/low": 0.28, "pass@1/high": 0.32} for s in (0, 12)]
    assert "heldout-flat" not in found(Evidence(rows, [evals[0], {**evals[1], "pass@1": 0.4}]))
    assert "heldout-flat" in found(Evidence(rows, [evals[0], {**evals[1], "step": 40}]))


def test_what_is_right_before_it_is_cut_off_is_no_truncation_bias() -> None:
    assert "truncation-bias" in found(record(truncated=0.4, accuracy=0.5))
    assert "truncation-bias" not in found(record(truncated=0.4, accuracy=0.95))


def test_old_rollouts_are_stale_where_the_policy_has_moved() -> None:
    near = {"staleness__mean": 20.0, "staleness__max": 40.0, "staleness__drift": 0.03}
    assert "stale-data" not in found(record(**near))
    far = found(record(**near | {"staleness__drift": 0.12}))["stale-data"].symptom
    assert "20.0 optimizer steps old" in far.message
    assert far.evidence["staleness/max"] == 40.0
    younger = {"staleness__mean": 1.5, "staleness__drift": 0.12}
    assert "stale-data" not in found(record(**younger))


def test_a_sampler_that_never_agreed_is_not_called_stale() -> None:
    both = {"staleness__mean": 1.5, "staleness__drift": 0.32, "sampler_gap": 0.3}
    names = found(record(**both))
    assert "sampler-mismatch" in names
    assert "stale-data" not in names


def test_a_verifier_that_contradicts_itself_is_a_suspect() -> None:
    same = [rollout(accuracy=1.0), rollout(accuracy=0.0)]
    assert "verifier-suspect" in found(Evidence([], rollouts=same))
    other_prompt = [rollout(accuracy=1.0), rollout(accuracy=0.0, prompt_id="q", prompt="1+2=")]
    assert not found(Evidence([], rollouts=other_prompt))


def test_equal_final_answers_count_where_the_completions_differ() -> None:
    rows = [
        rollout(
            prompt=f"{i}+1=", completion=f"{word} \\boxed{{{i + 1}}}", accuracy=float(word == "so")
        )
        for i in range(4)
        for word in ("so", "hence")
    ]
    assert "final answers" in found(Evidence([], rollouts=rows))["verifier-suspect"].symptom.message


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "<s>[INST] 1+1="},
        {"tokens": ["<|begin_of_text|>", "2", "<|eot_id|>"]},
        {"tokens": ["2", "<|im_end|>", "3", "<|im_end|>"]},
        {"tokens": ["2", "</s>", "</s>"]},
    ],
    ids=["prompt", "begin", "goes on", "doubled end"],
)
def test_doubled_special_tokens_are_found(fields: dict[str, Any]) -> None:
    assert "special-tokens" in found(Evidence([], rollouts=[rollout(**fields)]))


def test_special_tokens_that_the_policy_did_not_write_are_fine() -> None:
    tokens = ["2", "<|im_end|>", "<|im_start|>", "tool", "<|im_end|>"]
    row = rollout(tokens=tokens, mask=[1, 1, 0, 0, 0])
    assert not found(Evidence([], rollouts=[row, rollout(tokens=["2", "<|im_end|>"])]))


def test_prompts_are_compared_without_case_and_white_space() -> None:
    rows = [rollout(prompt="What is 1+1?"), rollout(phase="after", prompt=" what is  1+1?")]
    assert "duplicate-prompts" in found(Evidence([], rollouts=rows))
    rows = [rollout(prompt="What is 1+1?"), rollout(phase="after", prompt="What is 1+2?")]
    assert not found(Evidence([], rollouts=rows))


def test_wrong_completions_that_grow_blame_a_length_biased_loss() -> None:
    rows = [
        rollout(step=step, accuracy=right, prompt=f"{i}", tokens=["x"] * int(length + i % 3))
        for step, wrong in ((1, 20), (10, 20), (20, 40), (30, 60))
        for i in range(10)
        for right, length in ((1.0, 20), (0.0, wrong))
    ]
    for aggregation, expected in (("sequence-mean-token-mean", True), ("token-mean", False)):
        pipeline = [{"slot": "objective.aggregation", "part": aggregation, "numbers": {}}]
        run = Evidence([], rollouts=rows, about={"pipeline": pipeline})
        assert ("length-biased-loss" in found(run)) == expected


def test_findings_are_ordered_by_level_then_harm() -> None:
    run = record(truncated=0.9, groups__signal=0.02, clip__high=0.2, clip__low=0.12)
    levels = [finding.level for finding in diagnose(run)]
    assert levels == sorted(levels, key=("serious", "likely", "hint").index)
    assert diagnose(run)[0].harm == 3


def test_live_warnings_are_the_doctors_findings_said_once() -> None:
    rows = record(60, groups__signal=0.02, entropy=lambda t: 1 - 0.99 * t, accuracy=0.0).metrics
    doctor = LiveDoctor()
    said = [line for row in rows for line in doctor.warnings(row["step"], row)]
    assert sum("groups hold both right and wrong" in line for line in said) == 1
    assert sum("entropy fell" in line for line in said) == 1
    assert len(said) == 2


def test_windows_are_a_tenth_of_a_long_run_and_never_more_than_half_a_short_one() -> None:
    assert [width(n) for n in (1, 4, 10, 40, 60, 100, 2000)] == [1, 2, 5, 6, 10, 10, 200]


def test_a_constant_has_no_trend_and_a_line_has_one() -> None:
    assert trend([0.25] * 30) == 0.0
    assert trend([0.1 * i for i in range(30)]) > 100


def test_halves_are_of_logged_steps() -> None:
    rows = [rollout(step=s) for s in (1, 1, 10, 20, 30)]
    before, after = halves(rows)
    assert {r.step for r in before} == {1, 10}
    assert {r.step for r in after} == {20, 30}
