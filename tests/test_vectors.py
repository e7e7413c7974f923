"""Every vector of `tests/vectors` is reproduced: values and gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.verify.__main__ import main
from tests.verify.harness import Case, load_mappings, read_cases, verify

FOLDER = Path(__file__).parent / "vectors"
CASES = [case for path in sorted(FOLDER.glob("*.json")) for case in read_cases(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.key}-{case.name}")
def test_vector(case: Case) -> None:
    verdict = verify(case)
    assert verdict.passed, verdict.problem


def write_vectors(folder: Path, **changes: object) -> None:
    content = json.loads((FOLDER / "grpo.json").read_text())
    content["cases"][0].update(changes)
    (folder / "grpo.json").write_text(json.dumps({**content, "cases": content["cases"][:1]}))


def test_verify_accepts_a_folder_it_has_never_seen(tmp_path: Path) -> None:
    write_vectors(tmp_path)
    assert main([str(tmp_path)]) == 0


def test_verify_fails_on_a_wrong_value(tmp_path: Path) -> None:
    write_vectors(tmp_path, expected={"advantages": [0.0] * 8})
    assert main([str(tmp_path)]) == 1


def test_verify_fails_on_an_unknown_key(tmp_path: Path) -> None:
    content = json.loads((FOLDER / "grpo.json").read_text()) | {"method": "no-such-method"}
    (tmp_path / "odd.json").write_text(json.dumps(content))
    assert main([str(tmp_path)]) == 1


def test_verify_fails_on_an_input_that_it_would_ignore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = json.loads((FOLDER / "grpo.json").read_text())["cases"][0]
    write_vectors(tmp_path, inputs={**case["inputs"], "surprise": [1.0]})
    assert main([str(tmp_path)]) == 1
    assert "unread: inputs.surprise" in capsys.readouterr().out


def test_every_vector_file_has_a_mapping() -> None:
    assert {case.key for case in CASES} <= set(load_mappings())
