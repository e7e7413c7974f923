"""polyopt's ideas in verl's registries give polyopt's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polyopt.errors import UserError
from polyopt.ideas import build, load_catalog
from polyopt.recipe import Recipe
from tests.adapters.messages import message
from tests.adapters.verl_actor import actor_loss
from tests.peers import verl_functions as verl
from tests.peers.accumulation import accumulated
from tests.peers.agreement import error
from tests.peers.random_batches import EQUAL, SEEDS, UNEQUAL, Sample, rewards_at_end, sample

adapter = pytest.importorskip("polyopt.adapters.verl")
verl_options = pytest.importorskip("polyopt.adapters.verl_options")
TOLERANCE = 1e-6


def catalog() -> Iterator[tuple[str, Any]]:
    """Ideas and their names in verl's registries."""
    return ((name, adapter.REGISTERED[name]) for name in load_catalog())


def estimators() -> Iterator[tuple[Recipe, str]]:
    """Every recipe of the catalog whose advantages verl can be asked for, and its name there."""
    for expression, names in catalog():
        if names.estimator and not refused(adapter.Estimator(build(expression)).check, ()):
            yield build(expression), names.estimator


def losses() -> Iterator[tuple[Recipe, str]]:
    """Every recipe of the catalog whose loss verl can be asked for, and its name there."""
    for expression, names in catalog():
        if names.loss and not refused(adapter.PolicyLoss(build(expression)).check):
            yield build(expression), names.loss


def refused(check: Any, *args: Any) -> bool:
    try:
        check(*args)
    except UserError:
        return True
    return False


def advised(recipe: Recipe, name: str) -> tuple[str, dict[str, Any]]:
    """The aggregation mode and the numbers of the actor that `settings` advises."""
    found = verl_options.options(recipe, adapter.Names(None, name))
    prefix = f"{verl_options.ACTOR}."
    numbers = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
    numbers.pop("policy_loss.loss_mode")
    return numbers.pop("loss_agg_mode", "token-mean"), numbers


def without_verls_terms(recipe: Recipe) -> Recipe:
    """The recipe without the terms of the loss that verl adds itself."""
    objective = dataclasses.replace(recipe.objective, kl=None, entropy=None)
    return dataclasses.replace(recipe, objective=objective)


def signed(made: Sample) -> Sample:
    """The sample with an advantage of its own at every token."""
    draw = torch.Generator().manual_seed(7)
    values = torch.randn(made.logp.shape, generator=draw, dtype=torch.float64)
    return made.changed(advantages=values * made.batch.mask)


def test_every_idea_with_advantages_is_an_estimator_of_verl() -> None:
    for expression, names in adapter.REGISTERED.items():
        if any(slot.startswith("advantages.") for slot in build(expression).origins):
            assert names.estimator in (expression, f"polyopt-{expression}")
            assert isinstance(
                verl.core_algos.get_adv_estimator_fn(names.estimator), adapter.Estimator
            )


def test_every_idea_with_a_loss_is_a_policy_loss_of_verl() -> None:
    for expression, names in adapter.REGISTERED.items():
        if any(slot.startswith("objective.") for slot in build(expression).origins):
            assert names.loss in (expression, f"polyopt-{expression}")
            assert isinstance(verl.core_algos.get_policy_loss_fn(names.loss), adapter.PolicyLoss)


def test_the_docs_say_how_many_ideas_verl_gets_and_can_run() -> None:
    names = [found for _, found in catalog()]
    docs = (Path(__file__).parents[2] / "docs" / "other-trainers.md").read_text()
    said = " ".join(docs.split())
    assert f"{sum(n.estimator is not None for n in names)} ideas as advantage estimators" in said
    assert f"{sum(n.loss is not None for n in names)} as policy losses" in said
    running = len(list(estimators())), len(list(losses()))
    assert f"{running[0]} of the estimators and {running[1]} of the losses work" in said


def test_verls_own_names_keep_their_meaning() -> None:
    assert adapter.REGISTERED["grpo"].estimator == "polyopt-grpo"
    assert adapter.REGISTERED["gspo"].loss == "polyopt-gspo"
    own = verl.core_algos
    assert own.get_adv_estimator_fn("grpo") is own.compute_grpo_outcome_advantage
    assert own.get_policy_loss_fn("gspo") is own.compute_policy_loss_gspo


@pytest.mark.parametrize("seed", [1, 3])  # rewards of 0 and 1
def test_advantages_of_every_idea_are_those_of_polyopt(seed: int) -> None:
    batch = sample(seed, UNEQUAL, holes=False).batch
    count = 0
    for recipe, name in estimators():
        ours = sample(seed, UNEQUAL, holes=False).credited(recipe).batch["advantages"]
        given = (rewards_at_end(batch), batch.mask.long(), batch.group.numpy().astype(str))
        theirs = verl.core_algos.get_adv_estimator_fn(name)(*given, config=None)[0]
        assert float((ours - theirs).abs().max()) < TOLERANCE, name
        count += 1
    assert count > 60


@pytest.mark.parametrize("count", [1, 2, 7])
def test_loss_and_gradient_of_every_idea_are_those_of_polyopts_learner(count: int) -> None:
    compared = 0
    for recipe, name in losses():
        if recipe.objective.coupled and count > 1:
            continue
        made = signed(sample(compared % 6, EQUAL))
        made = made.changed(max_tokens=torch.full((28,), float(made.batch.width)))
        mode, numbers = advised(recipe, name)
        theirs = verl.accumulated_loss(name, made, mode, count, **numbers)
        ours = accumulated(without_verls_terms(recipe).objective, made, 1)
        assert error(ours.loss, theirs.loss) < TOLERANCE, name
        if not ours.gradient.any():  # a covariance clip may silence all
            assert not theirs.gradient.any()
            continue
        assert error(ours.gradient, theirs.gradient) < TOLERANCE, name
        compared += 1
    assert compared > 90


@pytest.mark.parametrize("count", [1, 7])
def test_what_verls_actor_differentiates_is_polyopts_whole_objective(count: int) -> None:
    """`ppo_loss` with the options of `settings`, KL terms included, against polyopt's learner."""
    compared = 0
    for recipe, name in losses():
        if recipe.objective.entropy is not None or (recipe.objective.coupled and count > 1):
            continue
        made = signed(sample(2 * (compared % 3), EQUAL))
        made = made.changed(max_tokens=torch.full((28,), float(made.batch.width)))
        mode, numbers = advised(recipe, name)
        theirs = actor_loss(name, made, mode, count, **numbers)
        ours = accumulated(recipe.objective, made, 1)
        assert error(ours.loss, theirs.loss) < TOLERANCE, name
        assert float((ours.gradient - theirs.gradient).abs().max()) < TOLERANCE, name
        compared += 1
    assert compared > 80


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_with_the_kl_term_that_verl_adds_is_grpo(seed: int) -> None:
    recipe, made = build("grpo"), signed(sample(seed, EQUAL))
    mode, numbers = advised(recipe, "grpo")
    kl = (numbers["kl_loss_coef"], numbers["kl_loss_type"])
    theirs = verl.loss("grpo", made, mode, kl, **numbers)
    ours = accumulated(recipe.objective, made, 1)
    assert error(ours.loss, theirs.loss) < TOLERANCE
    assert error(ours.gradient, theirs.gradient) < TOLERANCE


def test_tokens_reach_an_estimator_that_is_given_verls_batch() -> None:
    made = sample(0, UNEQUAL)
    tokens = torch.randint(0, 9, made.batch.mask.shape, generator=torch.Generator().manual_seed(1))
    batch = made.batch.replace(tokens=tokens)
    ours = build("ktae").advantages(batch)["advantages"]
    theirs = adapter.Estimator(build("ktae"))(
        rewards_at_end(batch),
        batch.mask.long(),
        batch.group.numpy(),
        batch={"responses": tokens},
    )[0]
    assert float((ours - theirs).abs().max()) < TOLERANCE


def test_an_expression_is_registered_and_its_settings_named() -> None:
    found = adapter.settings("rloo+gspo")
    assert found["algorithm.adv_estimator"] == "rloo+gspo"
    assert found["actor_rollout_ref.actor.policy_loss.loss_mode"] == "rloo+gspo"
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-mean"
    assert verl.core_algos.get_adv_estimator_fn("rloo+gspo")


def test_dynamic_sampling_is_a_setting_of_verl() -> None:
    assert adapter.settings("dapo")["algorithm.filter_groups.enable"] is True


# --- what verl can't do ---------------------------------------------------------------------------


def call_estimator(name: str) -> None:
    batch = sample(0).batch
    verl.advantages(adapter.REGISTERED[name].estimator, batch)


@pytest.mark.parametrize(
    ("idea", "words"),
    [
        ("ktae", ["'key-tokens'", "'ktae'", "'tokens'"]),
        ("treerpo", ["'segment-tree-sampling'", "rollouts.sampler", "samples the completions"]),
        ("egsw", ["'entropy-guided-tokens'", "selection.parts[0]", "'egsw'"]),
    ],
)
def test_an_estimator_without_what_it_needs_says_so(idea: str, words: list[str]) -> None:
    said = message(lambda: call_estimator(idea))
    assert all(word in said for word in [*words, "polyopt train"])


@pytest.mark.parametrize(
    ("idea", "words"),
    [
        ("rebel", ["'relative-reward-regression'", "which rollouts form a group"]),
        ("delta-l", ["'length-weighted'", "no aggregation"]),
        ("ppo", ["'clipped-value-loss'", "evaluation:values"]),
    ],
)
def test_settings_of_a_loss_that_verl_cannot_do_are_an_error(idea: str, words: list[str]) -> None:
    said = message(lambda: adapter.PolicyLoss(build(idea)).check())
    assert all(word in said for word in [*words, "polyopt train"])


def test_another_aggregation_than_the_ideas_is_an_error() -> None:
    made = signed(sample(0, EQUAL))
    said = message(lambda: verl.loss("dr-grpo", made, "token-mean"))
    assert "loss_agg_mode" in said
    assert "seq-mean-token-sum-norm" in said


def test_a_kl_term_that_verl_is_not_told_of_is_an_error() -> None:
    said = message(lambda: verl.loss("grpo", signed(sample(0, EQUAL)), "seq-mean-token-mean"))
    assert "use_kl_loss" in said


def test_a_coupled_loss_on_a_part_of_the_mini_batch_is_an_error() -> None:
    recipe = build("clip-cov")
    mode, numbers = advised(recipe, "clip-cov")
    made = signed(sample(0, EQUAL))
    said = message(lambda: verl.accumulated_loss("clip-cov", made, mode, 2, **numbers))
    assert "14 of 28" in said
