"""Workloads: models, prompts of exact lengths, a free reward, and our trainer on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from polyopt.batch import Prompt
from polyopt.ideas import build
from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task
from polyopt.trainer import Trainer

LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Workload:
    """Sizes of one training step.

    Attributes:
        model: "smollm2", "embedded", "small" (4 layers of 128, 49152 tokens), or a shape such as
            "64x2x512": hidden size, layers, vocabulary.
        prompts: Prompts a step.
        rollouts: Rollouts per prompt.
        prompt_tokens: Tokens of every prompt.
        new_tokens: Tokens of every completion.
        peer_rows: Micro-batch of the peer, where the whole won't fit.
        micro_tokens: Tokens of which our side holds activations at a time; None for the default.
        alone: The two sides don't fit into memory together: one runs after the other, not in turns.
    """

    model: str
    prompts: int
    rollouts: int
    prompt_tokens: int
    new_tokens: int
    peer_rows: int | None = None
    micro_tokens: int | None = None
    alone: bool = False

    @property
    def rows(self) -> int:
        """Rollouts a step."""
        return self.prompts * self.rollouts

    @property
    def tokens(self) -> int:
        """Tokens of all rows, prompts included."""
        return self.rows * (self.prompt_tokens + self.new_tokens)

    @property
    def distinct_tokens(self) -> int:
        """Tokens with every prompt counted once."""
        return self.prompts * self.prompt_tokens + self.rows * self.new_tokens

    def __str__(self) -> str:
        lengths = f"({self.prompt_tokens}+{self.new_tokens})"
        return f"{self.model} {self.prompts}x{self.rollouts}x{lengths}"


STEPS = {
    "a": Workload("smollm2", 4, 8, 173, 64, alone=True),
    "b": Workload("smollm2", 4, 8, 1024, 64, peer_rows=4, alone=True),
    "c": Workload("embedded", 32, 8, 16, 32),
    "d": Workload("small", 32, 8, 24, 24),
}
"""The workloads of whole steps.

In (b), a row takes 2.7 GB of activations in the peer's forward (measured), so of the micro-batches
that divide 32 rows, 4 is the largest that fits into 24 GB beside weights and moments.
"""
QUICK_STEPS = {
    "a": Workload("embedded", 2, 4, 24, 4),
    "b": Workload("embedded", 2, 4, 48, 4, peer_rows=4),
    "c": Workload("embedded", 4, 4, 8, 4),
    "d": Workload("32x2x512", 2, 4, 8, 4),
}
"""Their shapes in seconds."""


def llama(hidden: int, layers: int, vocabulary: int, positions: int = 512) -> LlamaForCausalLM:
    """A Llama of random weights with heads of 32."""
    heads = max(1, hidden // 32)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def policy_of(model: str, **options: Any) -> Policy:
    """The workload's model, ready to train, without a chat template and with no stop token."""
    if model == "small":
        tokenizer = load_policy("smollm2").tokenizer
        policy = load_policy(
            llama(128, 4, 49152), tokenizer=tokenizer, chat_template="none", **options
        )
    elif "x" in model and model.replace("x", "").isdigit():
        hidden, layers, vocabulary = (int(part) for part in model.split("x"))
        tokenizer = load_policy("embedded").tokenizer
        made = llama(hidden, layers, vocabulary)
        policy = load_policy(made, tokenizer=tokenizer, chat_template="none", **options)
    else:
        policy = load_policy(model, chat_template="none", **options)
    policy.stop_ids = frozenset()
    return policy


def save_model(model: str, folder: Path) -> Path:
    """The workload's model in Hugging Face format, for both sides."""
    policy_of(model).save(folder)
    return folder


def prompt_texts(work: Workload, tokenizer: Any) -> list[str]:
    """A text of exactly `prompt_tokens` tokens for each prompt, all different."""
    texts = []
    for i in range(work.prompts):
        digits = "".join(f"{(i * 37 + 7 * j) % 100} + " for j in range(work.prompt_tokens + 8))
        texts.append(_cut(f"{i} = {digits}", work.prompt_tokens, tokenizer))
    return texts


def _cut(text: str, length: int, tokenizer: Any) -> str:
    """The longest beginning of the text that has exactly so many tokens when tokenized again."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    guess = len(tokenizer.decode(ids[:length]))
    for size in sorted(range(1, len(text)), key=lambda size: abs(size - guess))[:64]:
        if len(tokenizer(text[:size])["input_ids"]) == length:
            return text[:size]
    raise ValueError(f"no prompt of exactly {length} tokens with this tokenizer")


def share_of_spaces(completions: Sequence[str]) -> list[float]:
    """A reward that differs between rollouts and costs nothing."""
    return [text.count(" ") / (len(text) + 1) for text in completions]


def trainer_of(policy: Policy, work: Workload, **options: Any) -> Trainer:
    """Our trainer on the workload: GRPO without KL, one optimizer step a batch."""

    def reward(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        return share_of_spaces(completions)

    prompts = [Prompt(str(i), t) for i, t in enumerate(prompt_texts(work, policy.tokenizer))]
    numbers: dict[str, Any] = {
        "prompts.per_step": work.prompts,
        "rollouts.per_prompt": work.rollouts,
        "rollouts.max_tokens": work.new_tokens,
        "updates.optimizer.lr": LEARNING_RATE,
        "objective.kl": "none",
    }
    if work.micro_tokens is not None:
        numbers["updates.micro_tokens"] = work.micro_tokens
    task = Task("benchmark", prompts, [], (RewardTerm("spaces", reward),))
    return Trainer(policy, task, build("grpo", numbers), steps=1000, **options)


def check_tokens(work: Workload, sampled: float, side: str) -> None:
    """Refuse a measurement in which completions ended early."""
    if round(sampled) != work.rows * work.new_tokens:
        raise RuntimeError(
            f"{side} sampled {sampled:.0f} tokens in a step of {work}, "
            f"not {work.rows * work.new_tokens}: the sides would not do the same work"
        )
