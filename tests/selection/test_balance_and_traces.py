"""Balance within a prompt, weights of traces, and how strongly a teacher is followed."""

from __future__ import annotations

import torch
from tests.laws.batches import ragged_batch

from polyopt.batch import Batch
from polyopt.selection.balance import DropSurplusFailures, class_balance
from polyopt.selection.guidance import hints_only_on_failure
from polyopt.selection.teaching import AnnealedTeacher, teach_failures, teach_unsolved
from polyopt.selection.traces import accuracy_trace_weights, heaviest_only


def outcomes(*rewards: float, group: list[int] | None = None) -> Batch:
    ids = None if group is None else torch.tensor(group)
    return Batch.of(rewards=torch.tensor(rewards), group=ids, mask=torch.ones(len(rewards), 2))


def test_right_and_wrong_weigh_half_a_prompt_each() -> None:
    batch = class_balance(outcomes(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, group=[0, 0, 0, 0, 1, 1]))
    weights = batch["weights"][:, 0]
    torch.testing.assert_close(weights, torch.tensor([2.0, 2 / 3, 2 / 3, 2 / 3, 1.0, 1.0]))


def test_balance_multiplies_weights_that_are_already_there() -> None:
    batch = outcomes(1.0, 0.0, 0.0, 0.0)
    halved = class_balance(batch.replace(weights=torch.full((4, 2), 0.5)))
    torch.testing.assert_close(halved["weights"], class_balance(batch)["weights"] / 2)


def test_failures_are_dropped_until_they_are_no_majority() -> None:
    batch = outcomes(1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, group=[0, 0, 0, 0, 0, 1, 1, 1])
    kept = DropSurplusFailures()(batch)
    assert kept[[0, 5, 6, 7]].all()
    assert kept[1:5].sum() == 1


def test_another_rollout_is_dropped_under_other_ids() -> None:
    batch = outcomes(1.0, *[0.0] * 9)
    kept = {
        DropSurplusFailures()(batch.replace(rollout=torch.arange(10) + start))[1:].nonzero().item()
        for start in range(0, 200, 10)
    }
    assert len(kept) > 4


def test_unscored_rollouts_are_no_failures() -> None:
    batch = outcomes(1.0, 0.0, float("nan"), float("nan"))
    assert DropSurplusFailures()(batch).all()


def test_trace_weights_average_to_one_where_anything_is_right() -> None:
    batch = ragged_batch()
    batch = batch.replace(logp_sampler=batch["logp_old"] - 0.3)
    chosen = accuracy_trace_weights(batch)
    live = batch.mask.any(1)
    for group in (3, 7, 12):
        members = live & (batch.group == group)
        weights = chosen["weights"][members].amax(1)
        torch.testing.assert_close(weights.mean(), torch.tensor(1.0, dtype=torch.float64))
        assert (weights[batch["accuracy"][members] == 0] == 0).all()


def test_only_the_best_trace_of_a_prompt_trains() -> None:
    batch = outcomes(1.0, 1.0, 0.0, 0.0, group=[0, 0, 1, 1])
    weights = torch.tensor([0.5, 1.5, 0.0, 0.0])[:, None].expand(-1, 2)
    chosen = heaviest_only(batch.replace(weights=weights))
    assert chosen.loss_mask[:, 0].tolist() == [False, True, False, False]
    assert chosen["weights"][1].tolist() == [1.0, 1.0]


def test_hints_go_where_a_plain_rollout_succeeded() -> None:
    batch = outcomes(1.0, 0.0, 0.0, 1.0, group=[0, 0, 1, 1])
    batch = batch.replace(guided=torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert hints_only_on_failure(batch).tolist() == [True, False, True, True]


def test_a_teacher_fades_and_its_step_is_saved() -> None:
    part, batch = AnnealedTeacher(first=0.5, decay=0.2, last=0.2), outcomes(1.0, 0.0)
    seen = [float(part(batch)["teacher_weight"][0]) for _ in range(3)]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor([0.5, 0.3, 0.2]))
    again = AnnealedTeacher(first=0.5, decay=0.2, last=0.2)
    again.load_state_dict(part.state_dict())
    assert again.step == 3


def test_a_teacher_speaks_to_those_who_fail() -> None:
    batch = outcomes(1.0, 0.0, 0.0, 0.0, group=[0, 0, 1, 1])
    assert teach_failures(batch)["teacher_weight"].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert teach_unsolved(batch)["teacher_weight"].tolist() == [0.0, 0.0, 1.0, 1.0]
