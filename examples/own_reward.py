"""A task and a reward of your own, from Python: the embedded model learns to be brief.

python examples/own_reward.py
"""

from __future__ import annotations

from collections.abc import Sequence

import polyopt
from polyopt import Prompt, RewardTerm, Task


def brief(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
    """1 for an answer of at most 20 characters."""
    return [float(len(completion) <= 20) for completion in completions]


def question(i: int) -> Prompt:
    """A sum in the words that the embedded model knows."""
    a, b = divmod(i, 10)
    text = f"State the final answer to the following arithmetic problem: {a} + {b} ="
    return Prompt(f"sum/{i}", ({"role": "user", "content": text},), str(a + b))


problems = [question(i) for i in range(100)]
task = Task("brief", problems[:80], problems[80:], (RewardTerm("brief", brief, correctness=True),))

if __name__ == "__main__":
    result = polyopt.train(
        "embedded",
        task,
        "rloo",
        steps=10,
        overrides={"rollouts.max_tokens": 48, "updates.optimizer.lr": 3e-4},
    )
    print("brief before and after:", result.before["pass@1"], result.after["pass@1"])
