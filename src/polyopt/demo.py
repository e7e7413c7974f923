"""The main job as a demonstration: the embedded model learns to work out sums."""

from __future__ import annotations

from pathlib import Path

from polyopt.training import RunResult, train

EXPRESSION = "grpo"
TASK = "reasoning_gym:chain_sum?min_terms=5&max_terms=6&min_digits=1&max_digits=1"
STEPS = 60
NUMBERS = {
    "prompts.per_step": 16,
    "rollouts.per_prompt": 8,
    "rollouts.max_tokens": 40,
    "updates.optimizer.lr": 1e-4,
    "updates.schedule.warmup": 5,
}


def demo(*, seed: int = 0, run: Path | None = None, quiet: bool = False) -> RunResult:
    """GRPO on sums of five or six digits, with 500 held-out problems before and after.

    The embedded model half knows the task: most of its answers come at once and are often wrong,
    the others work through running totals. Nobody tells it which habit is better; the verifier
    only says right or wrong.
    """
    return train(
        "embedded",
        TASK,
        EXPRESSION,
        steps=STEPS,
        seed=seed,
        run=run,
        overrides=NUMBERS,
        task_options={"heldout_size": 500},
        checkpoint_every=50,
        quiet=quiet,
    )
