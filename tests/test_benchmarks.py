"""Each benchmark runs in its quick shape and says what it should; the peers' are in tests/peers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402
import harness  # noqa: E402
import limits  # noqa: E402
import memory  # noqa: E402
import run  # noqa: E402
import sample  # noqa: E402
import scaling  # noqa: E402
import step  # noqa: E402
import train  # noqa: E402
import workers  # noqa: E402
import workloads  # noqa: E402

from polyopt.models.loading import load_policy  # noqa: E402

FIELDS = {
    "benchmark",
    "workload",
    "unit",
    "polyopt",
    "other",
    "ratio",
    "goal",
    "better",
    "reached",
    "quick",
    "clock",
    "machine",
    "note",
}


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def quick(module: Any, out: Path, *options: str) -> list[dict[str, Any]]:
    """The lines of a quick run, each checked for its fields."""
    module.main(["--quick", "--repeats", "1", "--out", str(out), *options])
    found = lines(out)
    for line in found:
        assert line.keys() >= FIELDS
        assert line["quick"]
        assert line["machine"]["threads"] >= 1
        assert line["polyopt"]["median"] > 0
        assert len(line["polyopt"]["samples"]) == 1
    return found


def test_sample_compares_with_generate_and_with_the_machine(tmp_path: Path) -> None:
    found = quick(sample, tmp_path / "lines", "--peers", "generate")
    names = [line["workload"] for line in found]
    assert names[:2] == ["batch 1 against generate", "batch 8 against generate"]
    assert names[2:] == ["batch 1 against memory bandwidth", "batch 8 against matrix products"]
    for line in found:
        assert line["ratio"] == pytest.approx(
            line["polyopt"]["median"] / line["other"]["median"], rel=1e-3
        )
    assert all(0 < line["ratio"] < 1 for line in found[2:])


def test_train_compares_with_cross_entropy_and_with_the_machine(tmp_path: Path) -> None:
    found = quick(train, tmp_path / "lines")
    assert [line["workload"] for line in found] == [
        f"{prompts} prompts against {other}"
        for prompts in ("shared", "own")
        for other in ("cross-entropy", "matrix products")
    ]
    assert found[1]["useful_gflop"] < found[3]["useful_gflop"]


class Stopwatches:
    """Stands in for the two processes: ours takes 1 s, TRL 3 s, and the first step of each 100."""

    def __init__(self, side: str, work: workloads.Workload, folder: Path) -> None:
        assert (folder / "config.json").is_file()
        self.times = iter([100.0, *[{"polyopt": 1.0, "trl": 3.0}[side]] * 9])

    def step(self) -> workers.Step:
        return workers.Step({"wall": next(self.times)}, peak_gb=0.5)

    def __enter__(self) -> Stopwatches:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("options", "trl", "ratio", "note"),
    [
        ((), "trl 1.0", 3.0, ""),
        ((), None, None, "TRL isn't installed"),
        (("--only", "polyopt"), "trl 1.0", None, "one side only"),
    ],
)
def test_step_says_how_many_times_faster(
    options: tuple[str, ...],
    trl: str | None,
    ratio: float | None,
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "Worker", Stopwatches)
    monkeypatch.setattr(step, "installed_trl", lambda: trl)
    (line,) = quick(step, tmp_path / "lines", "--workload", "c", *options)
    assert (line["ratio"], line["note"]) == (ratio, note)
    assert line["reached"] == (None if ratio is None else False)
    assert line["polyopt"]["median"] == 1


def test_memory_compares_groups_in_fresh_processes(tmp_path: Path) -> None:
    (line,) = quick(memory, tmp_path / "lines", "--workload", "groups")
    assert line["better"] == "lower"
    assert line["ratio"] == pytest.approx(1, abs=0.2)


def test_scaling_fits_and_draws(tmp_path: Path) -> None:
    found = quick(scaling, tmp_path / "lines", "--plot", str(tmp_path / "plot"))
    assert [line["workload"] for line in found] == ["tokens", "group", "model"]
    assert all(len(line["points"]) == 3 for line in found)
    assert "x: thousand weights" in (tmp_path / "plot-model.svg").read_text()


def test_a_fit_is_exact_on_a_line_and_shows_a_cliff() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    line = scaling.fit(x, [3 + 2 * v for v in x])
    assert (line.a, line.b) == (pytest.approx(3), pytest.approx(2))
    steep = scaling.fit(range(1, 9), [1.0, 1, 1, 1, 1, 1, 1, 2])
    assert max(steep.over) == steep.over[-1] > scaling.CLIFF


@pytest.mark.parametrize(
    ("better", "ratio", "reached"),
    [("higher", 2.0, True), ("higher", 0.9, False), ("lower", 0.9, True), ("lower", 2.0, False)],
)
def test_a_goal_is_reached_from_the_better_side(better: Any, ratio: float, reached: bool) -> None:
    side = harness.Side("side", [1.0])
    made = harness.Comparison("b", "w", "s", side, side, ratio, goal=1.0, better=better)
    assert made.reached is reached


def test_sides_are_measured_in_turns_and_warm_ups_do_not_count() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = harness.alternate({n: lambda n=n: measure(n) for n in "ab"}, repeats=2)  # type: ignore[misc]
    assert order == list("ababab")
    assert found == {"a": [3, 5], "b": [4, 6]}


@pytest.mark.parametrize("name", ["c", "d"])
def test_prompts_have_exactly_their_length(name: str) -> None:
    work = workloads.STEPS[name]
    tokenizer = load_policy("embedded").tokenizer
    texts = workloads.prompt_texts(work, tokenizer)
    assert len(set(texts)) == work.prompts
    assert {len(tokenizer(text)["input_ids"]) for text in texts} == {work.prompt_tokens}


def test_a_step_that_sampled_too_little_is_refused() -> None:
    work = workloads.QUICK_STEPS["c"]
    with pytest.raises(RuntimeError, match="would not do the same work"):
        workloads.check_tokens(work, work.rows * work.new_tokens - 1, "TRL")


def test_an_untied_embedding_is_not_read() -> None:
    model = workloads.llama(32, 1, 64)
    whole = limits.weights_read(model)
    assert whole == sum(p.numel() for p in model.parameters())


def test_the_gpu_script_runs_dry_and_survives_a_failing_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(given: Any) -> Any:
        raise ValueError("broken")

    parts = [("broken", 0, fails), *gpu.gpu_parts.PARTS]
    monkeypatch.setattr(gpu.gpu_parts, "PARTS", parts)
    out = tmp_path / "lines"
    chosen = ["broken", "sampling", "steps", "training", "memory"]
    assert gpu.main(["--dry", "--repeats", "1", "--out", str(out), "--parts", *chosen]) == 0
    found = lines(out)
    assert found[0] == {"benchmark": "gpu", "workload": "broken", "error": "ValueError: broken"}
    assert {line["benchmark"] for line in found[1:]} == {"sample", "step", "train", "memory"}
    assert not any("error" in line for line in found[1:])
    assert "ValueError: broken" in capsys.readouterr().out


def test_the_gpu_script_leaves_out_what_no_longer_fits(tmp_path: Path) -> None:
    options = harness.parser("doc").parse_args(["--out", str(tmp_path / "lines")])
    options.budget, options.parts, options.dry = 0, None, False
    assert gpu.time_box(None, options) == len(gpu.gpu_parts.PARTS)
    assert all("left out" in line["error"] for line in lines(options.out))


def test_a_part_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeoutError, match="stopped after"), gpu.alarm(1.0):
        time.sleep(10)


def test_a_workload_that_fails_leaves_its_error_and_the_next_runs(tmp_path: Path) -> None:
    def fails() -> Any:
        raise MemoryError("too large")

    side = harness.Side("side", [2.0])
    made = harness.Comparison("b", "good", "s", side, side, 1.0)
    out = tmp_path / "lines"
    options = harness.parser("doc").parse_args(["--out", str(out)])
    assert not harness.attempt_all("b", {"bad": fails, "good": lambda: [made]}, options)
    first, second = lines(out)
    assert first == {"benchmark": "b", "workload": "bad", "error": "MemoryError: too large"}
    assert second["workload"] == "good"
    assert "MemoryError" in run.table([first, second])


SCRIPTS = {
    "step": "sys.exit(3)",
    "sample": "time.sleep(60)",
    "train": """open(out, 'a').write('{"benchmark": "train", "error": "E: no"}\\n'); sys.exit(1)""",
    "memory": """open(out, 'a').write('{"benchmark": "memory", "error": ""}\\n')""",
}


def test_benchmarks_that_fail_or_hang_lose_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, body in SCRIPTS.items():
        text = f"import sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n{body}\n"
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(run, "HERE", tmp_path)
    out = tmp_path / "lines"
    assert run.main([*SCRIPTS, "--out", str(out), "--limit", "0.05"]) == 1
    assert [line["error"] for line in lines(out)] == [
        "ended with exit code 3",
        "stopped after 0.05 minutes",
        "E: no",
        "",
    ]
    assert "FAILED: step, sample, train\n" in capsys.readouterr().out


def test_quick_lines_have_a_file_of_their_own() -> None:
    assert run.results_file(quick=True) != run.results_file(quick=False)


def test_a_new_run_replaces_only_its_own_lines(tmp_path: Path) -> None:
    out = tmp_path / "lines"
    out.write_text('{"benchmark": "step"}\n{"benchmark": "train"}\n')
    run.keep_others(out, ["step"])
    assert lines(out) == [{"benchmark": "train"}]


def test_the_table_shows_goals_and_notes() -> None:
    options = harness.parser("doc").parse_args([])
    side = harness.Side("side", [2.0])
    made = harness.Comparison("b", "w", "s", side, None, None, goal=6.0, note="no peer")
    text = run.table([made.record(options)])
    assert ">= 6" in text
    assert "b w: no peer" in text
