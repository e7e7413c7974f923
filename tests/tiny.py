"""A tiny policy and a tiny task: a whole training step takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from polyopt.batch import Prompt
from polyopt.models.policy import Policy
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task

LETTERS = ("<eos>", " ", *"0123456789+=ab")


def tiny_tokenizer() -> Any:
    """One token per character; pad and eos share an id, on purpose."""
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", unk_token=" "
    )


def tiny_policy(seed: int = 0, layers: int = 1, scale: float = 0.1) -> Policy:
    """A Llama of a few thousand weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=scale,
    )
    return Policy(LlamaForCausalLM(config), tiny_tokenizer(), name="tiny")


def starts_with_a_letter(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """1 if the completion begins with a letter."""
    return [float(text[:1] in ("a", "b")) for text in texts]


def tiny_task(prompts: int = 8) -> Task:
    """Prompts such as `3=`; right is any answer that begins with a letter."""
    facts = {"solution": "ab", "reference_rewards": [0, 0, 1, 0]}
    made = [Prompt(f"p{i}", f"{i}=", "a", facts) for i in range(prompts + 2)]
    term = RewardTerm("accuracy", starts_with_a_letter, correctness=True)
    return Task("tiny", made[:prompts], made[prompts:], (term,))


TINY_NUMBERS = {
    "updates.optimizer.lr": 0.01,
    "rollouts.max_tokens": 5,
    "rollouts.per_prompt": 8,
    "prompts.per_step": 4,
}
"""Overrides with which a recipe learns the tiny task in 25 steps."""
