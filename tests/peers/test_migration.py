"""From TRL, from verl: the tables name every option of theirs that is about the method."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.test_migration import code, rows

COMPLETE = (
    "algorithm.",
    "actor_rollout_ref.actor.policy_loss.",
    "actor_rollout_ref.actor.optim.",
    "actor_rollout_ref.actor.checkpoint.",
)
"""Parts of verl's configuration of which the page has every option, and what lies right in
`actor_rollout_ref.actor`."""

PREFIXES = ("", "actor_rollout_ref.actor.", "actor_rollout_ref.")


def names(page: str) -> set[str]:
    """What stands in the other trainer's column, without values."""
    return {name.split("=")[0] for row in rows(page) for name in code(row[0])}


def test_every_argument_of_trl_is_there() -> None:
    trl = pytest.importorskip("trl")
    from transformers import TrainingArguments

    common = {field.name for field in dataclasses.fields(TrainingArguments)}
    known = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    arguments = set(inspect.signature(trl.GRPOTrainer.__init__).parameters) - {"self"}
    assert names("from-trl.md") <= known | arguments
    assert (known - common) | arguments <= names("from-trl.md")


def test_the_example_from_trl_is_a_configuration_of_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    (block,) = blocks(DOCS / "from-trl.md", "python")
    calls = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)]
    (call,) = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "GRPOConfig"]
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    config = trl.GRPOConfig(str(tmp_path), bf16=False, **given)
    assert config.generation_batch_size == 16 * config.num_generations


def verl_options() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found = find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("verl isn't installed")
    path = Path(found.origin).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    return dict(_flat(yaml.safe_load(path.read_text())))


def _flat(tree: dict[str, Any], prefix: str = "") -> Any:
    for name, value in tree.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")


def full_names() -> set[str]:
    """verl's names on the page with their whole paths; values and `critic.*` left out."""
    options = verl_options()
    found = set()
    for name in names("from-verl.md"):
        whole = next((p + name for p in PREFIXES if p + name in options), None)
        if whole is not None:
            found.add(whole)
        else:
            values = {"grpo_vectorized", "rloo_vectorized", "tir_optimal_token_baseline"}
            assert name in values or name == "critic.*", f"verl has no option {name}"
    return found


def test_verl_has_every_option_that_the_page_names() -> None:
    assert len(full_names()) > 100


def test_every_option_of_verl_about_the_method_is_there() -> None:
    named, actor = full_names(), "actor_rollout_ref.actor."
    wanted = {
        option
        for option, value in verl_options().items()
        if not isinstance(value, dict)
        and "_target_" not in option
        and (
            option.startswith(COMPLETE)
            or (option.startswith(actor) and "." not in option.removeprefix(actor))
        )
    }
    assert wanted <= named, sorted(wanted - named)


def test_the_example_from_verl_has_options_of_verl() -> None:
    first = blocks(DOCS / "from-verl.md", "bash")[0].text
    given = re.findall(r"([\w.]+)=", first)
    assert len(given) > 8
    assert set(given) <= set(verl_options())
