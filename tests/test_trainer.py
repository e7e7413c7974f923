"""The trainer: groups as data, needs, refill, columns, and what a step reports."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from polyopt.batch import Batch, Prompt
from polyopt.distribution import Distribution
from polyopt.engines.protocol import Engine
from polyopt.errors import DataError, UserError
from polyopt.ideas import build
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task
from polyopt.trainer import Trainer
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task


def trainer_of(
    expression: str, task: Task | None = None, seed: int = 0, **numbers: object
) -> Trainer:
    recipe = build(expression, {**TINY_NUMBERS, **numbers})
    return Trainer(tiny_policy(), task or tiny_task(), recipe, steps=5, seed=seed)


def test_unequal_numbers_of_rollouts_are_the_normal_case() -> None:
    trainer = trainer_of("grpo+ktae")

    @dataclass(frozen=True)
    class Uneven:
        def __call__(self, prompts: list[Prompt], per_prompt: int) -> list[int]:
            return [1 + i for i in range(len(prompts))]

    object.__setattr__(trainer.recipe.prompts, "allocation", Uneven())
    result = trainer.step()
    assert torch.bincount(result.collected.seen.group).tolist() == [1, 2, 3, 4]
    assert result.trained is not None
    lone = result.trained.group == 0
    assert (result.trained["advantages/group-z-score"][lone] == 0).all()


def test_only_columns_that_someone_needs_are_computed() -> None:
    plain = trainer_of("dr-grpo").step().trained
    assert plain is not None
    assert not {"logp_ref", "logp_old", "values"} & set(plain.columns)
    grpo, ppo = trainer_of("grpo").step().trained, trainer_of("ppo").step().trained
    assert grpo is not None
    assert "logp_ref" in grpo
    assert "logp_old" not in grpo
    assert ppo is not None
    assert {"values", "returns", "logp_old", "logp_ref"} <= set(ppo.columns)


def test_adding_an_idea_does_not_reshuffle_prompts_or_sampling_noise() -> None:
    """Paired comparison: until the first update both recipes see the very same rollouts."""
    one, other = trainer_of("grpo").step(), trainer_of("rloo+ktae").step()
    assert one.collected.seen.texts == other.collected.seen.texts
    assert torch.equal(one.collected.seen["tokens"], other.collected.seen["tokens"])


def test_the_samples_of_one_prompt_have_streams_of_their_own() -> None:
    """Shared case 20: prompts x samples distinct streams, the same on a rerun, others by seed."""
    seen = trainer_of("grpo").step().collected.seen
    again = trainer_of("grpo").step().collected.seen
    other = trainer_of("grpo", seed=8).step().collected.seen
    assert seen.texts == again.texts
    assert seen.texts != other.texts
    by_group = [
        {t for t, g in zip(seen.texts, seen.group.tolist(), strict=True) if g == group}
        for group in set(seen.group.tolist())
    ]
    assert all(len(texts) > 1 for texts in by_group)
    assert len(seen) == TINY_NUMBERS["prompts.per_step"] * TINY_NUMBERS["rollouts.per_prompt"]


def test_dynamic_sampling_refills_until_the_step_is_full() -> None:
    step = trainer_of("dapo", **{"rollouts.per_prompt": 3}).step()
    assert step.trained is not None
    groups = torch.unique(step.trained.group)
    assert len(groups) == 4 or step.metrics["groups/missing"] == 4 - len(groups)
    assert step.metrics["rounds"] > 1
    for group in groups:
        rewards = step.trained["accuracy"][step.trained.group == group]
        assert rewards.min() < rewards.max()


def test_a_step_without_any_signal_is_counted_and_updates_nothing() -> None:
    def always(prompts: list[Prompt], texts: list[str]) -> list[float]:
        return [1.0] * len(texts)

    task = tiny_task().with_rewards([RewardTerm("accuracy", always, correctness=True)])
    trainer = trainer_of("dapo", task)
    weights = [p.clone() for p in trainer.policy.trainable_parameters()]
    step = trainer.step()
    assert step.trained is None
    assert step.metrics["groups/missing"] == 4
    for before, after in zip(weights, trainer.policy.trainable_parameters(), strict=True):
        assert torch.equal(before, after)


def test_replayed_rows_join_their_prompts_group_at_ratio_one() -> None:
    trainer = trainer_of("rlep", **{"prompts.per_step": 8})
    for _ in range(4):
        step = trainer.step()
    assert step.trained is not None
    fresh = len(step.collected.kept) if step.collected.kept is not None else 0
    assert len(step.trained) > fresh
    assert step.metrics["log_ratio/abs"] < 1e-5
    assert set(step.trained.group[fresh:].tolist()) <= set(step.trained.group[:fresh].tolist())
    assert len(torch.unique(step.trained.rollout)) == len(step.trained)


def test_ghpo_keeps_each_rollouts_own_prompt() -> None:
    def never_then_hinted(prompts: list[Prompt], texts: list[str]) -> list[float]:
        return [0.0] * len(texts)

    task = tiny_task().with_rewards([RewardTerm("accuracy", never_then_hinted, correctness=True)])
    seen = trainer_of("ghpo", task).step().collected.seen
    plain = trainer_of("grpo", task).step().collected.seen
    assert (seen["prompt_lengths"] > plain["prompt_lengths"].max()).all()


def test_a_prompt_that_leaves_no_room_is_refused_before_training() -> None:
    long = Prompt("too-long", "1" * 62, "a")
    task = Task("tiny", [*tiny_task().train, long], [], tiny_task().rewards)
    with pytest.raises(DataError, match=r"too-long.*62 tokens.*--max-tokens to at most 2"):
        trainer_of("grpo", task)


def test_missing_metadata_names_idea_field_and_remedy() -> None:
    task = Task("bare", [Prompt("p", "1=", "a")], [], tiny_task().rewards)
    with pytest.raises(DataError, match=r"'ghpo' needs 'solution'.*Add a column 'solution'"):
        trainer_of("ghpo", task)


def test_metrics_say_what_trained_part_by_part() -> None:
    metrics = trainer_of("grpo+ktae").step().metrics
    for name in (
        "advantage/group-z-score",
        "advantage/key-tokens",
        "groups/signal",
        "grad_norm",
        "truncated",
        "sampler_gap",
        "tokens/trained",
        "seconds/rollouts",
    ):
        assert name in metrics
    assert metrics["sampler_gap"] < 1e-4


def test_unscored_rollouts_train_nothing() -> None:
    def some(prompts: list[Prompt], texts: list[str]) -> list[float | None]:
        return [None if i % 4 == 0 else float(t[:1] == "a") for i, t in enumerate(texts)]

    task = tiny_task().with_rewards([RewardTerm("accuracy", some, correctness=True)])
    step = trainer_of("grpo", task).step()
    assert step.trained is not None
    unknown = step.trained.rewards.isnan()
    assert unknown.any()
    assert (step.trained["advantages"][unknown] == 0).all()
    assert step.metrics["unscored"] == pytest.approx(0.25)


def test_engines_are_interchangeable() -> None:
    """Whatever satisfies the protocol can sample: here one that records its requests."""

    class Recording:
        def __init__(self, inner: Engine) -> None:
            self.inner, self.asked = inner, 0

        def sample(self, requests):  # type: ignore[no-untyped-def]
            self.asked += len(requests)
            return self.inner.sample(requests)

        def sync(self, policy):  # type: ignore[no-untyped-def]
            self.inner.sync(policy)

    first = trainer_of("grpo")
    recording = Recording(first.engine)
    recipe = build("grpo", TINY_NUMBERS)
    Trainer(first.policy, tiny_task(), recipe, steps=1, engine=recording).step()
    assert recording.asked == 32


def test_batches_differing_in_columns_are_not_glued_together() -> None:
    from polyopt.batch import concat

    one = Batch.of(mask=torch.ones(1, 2), logp=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="differ in columns: logp"):
        concat([one, one.replace(logp=None)])


def test_salsas_reference_is_the_average_of_two_models() -> None:
    recipe = build("salsa", TINY_NUMBERS)
    with pytest.raises(UserError, match="--second MODEL"):
        Trainer(tiny_policy(), tiny_task(), recipe, steps=1)
    policy, second = tiny_policy(0), tiny_policy(1)
    trainer = Trainer(policy, tiny_task(), recipe, steps=1, second=second)
    soup = tiny_policy(0)
    mixed = {
        name: (weight + second.model.state_dict()[name]) / 2
        for name, weight in policy.model.state_dict().items()
    }
    soup.model.load_state_dict(mixed)
    batch = trainer.collector.collect(0).kept
    assert batch is not None
    found = policy.reference_log_probs(batch, Distribution())
    torch.testing.assert_close(found, soup.evaluate_all(batch, Distribution()).logp)


def test_a_column_that_only_an_environment_has_is_named_with_its_meaning() -> None:
    with pytest.raises(UserError, match=r"'state' .id of.*rollouts.annotations"):
        trainer_of("grpo+gigpo")


def test_the_uniform_value_is_the_mean_over_the_whole_vocabulary() -> None:
    trainer = trainer_of("rover", **{"rollouts.temperature": 0.7})
    batch = trainer.collector.collect(0).kept
    assert batch is not None
    distribution = trainer.recipe.rollouts.distribution
    found = trainer.policy.evaluate(batch, distribution, {"uniform_value"}).uniform_value
    assert found is not None
    ids = torch.cat([batch["prompt_tokens"], batch["tokens"]], dim=1)
    whole = (trainer.policy.model(ids).logits / 0.7).log_softmax(-1).mean(-1)
    start = batch["prompt_tokens"].shape[1] - 1
    expected = whole[:, start : start + batch.width]
    torch.testing.assert_close(found[batch.mask], expected[batch.mask], atol=1e-5, rtol=1e-5)
