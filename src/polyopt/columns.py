"""The standard columns of a batch: where each comes from."""

from __future__ import annotations

SAMPLED = frozenset(
    {
        "tokens",
        "lengths",
        "prompt_tokens",
        "prompt_lengths",
        "provenance",
        "logp_sampler",
        "truncated",
        "max_tokens",
        "entropy",
    }
)
"""Columns that every batch of rollouts has."""

COMPUTED = frozenset(
    {
        "advantages",
        "logp_old",
        "logp_ref",
        "logp_teacher",
        "uniform_value_old",
        "effective_rank",
        "erv",
        "era",
        "vocabulary_divergence",
    }
)
"""Columns that the trainer computes when some part needs them."""

GIVEN = {
    "step": "environment step of each token [N, T], counted from 0 within its rollout",
    "state": "id of the environment's state at each token's step [N, T]",
    "action": "id of the action that each token's step took [N, T]",
    "next_state": "id of the state that followed each token's step [N, T]",
    "turn_reward": "reward of each rollout's first turn [N]",
    "result_run": "index of the run of sampled tokens that follows the tool's result [N]",
    "turn": "turn that each row belongs to [N]",
    "agent": "agent that wrote each row [N]",
    "team_reward": "reward that the team as a whole got for each row [N]",
    "module": "module of the program that each row called [N]",
    "call": "how often the program had called that module before [N]",
    "variant": "variant of the question that each row answers [N]",
    "own_variant": "1 where a row answers the variant that it was sampled for [N]",
    "step_label": "a judge's verdict on the step of each token [N, T]",
    "first_call": "position of each rollout's first tool call, in tokens [N]",
    "answer_tokens": "tokens of the reference answer, forced after a sampled trace [N, T]",
}
"""Columns that only an environment, a judge or an annotation of the user's own can give."""
