"""A recipe in TRL's trainer: DAPO's loss with KTAE's credit for key tokens.

pip install 'trl==1.16.0'
python examples/trl_trainer.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from polyopt.adapters.trl import GRPOTrainer
from polyopt.models.loading import load_policy

SUMS = [(a, b, c) for a in range(1, 10) for b in range(1, 10) for c in range(1, 10)]
QUESTION = "State the final answer to the following arithmetic problem: {} + {} + {} ="
SHOWN = ("loss", "reward", "tokens/trained", "advantage/key-tokens")


def right(completions: Sequence[Any], answer: Sequence[int], **_: Any) -> list[float]:
    """1 where the marked answer is the sum."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(f"<answer>{a}</answer>" in text) for text, a in zip(texts, answer, strict=True)]


def main() -> None:
    """Four optimizer steps on the model that ships inside polyopt."""
    policy = load_policy("embedded", device="cpu")
    messages = [[{"role": "user", "content": QUESTION.format(*terms)}] for terms in SUMS]
    problems = Dataset.from_dict({"prompt": messages, "answer": [sum(terms) for terms in SUMS]})
    args = GRPOConfig(
        tempfile.mkdtemp(),
        max_steps=4,
        max_completion_length=48,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=4,
        learning_rate=3e-4,
        logging_steps=1,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        recipe="dapo+ktae",
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=right,
        train_dataset=problems,
        args=args,
    )
    trainer.train()
    for entry in trainer.state.log_history[:-1]:
        print({name: entry[name] for name in SHOWN if name in entry})


if __name__ == "__main__":
    main()
