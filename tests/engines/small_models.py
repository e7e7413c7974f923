"""Small random models of several architectures, and a text for their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from polyopt.models.policy import Policy

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
"""Pad and end of sequence share an id on purpose."""

ARCHITECTURES: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-wide": LlamaConfig(**SIZES, head_dim=32),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama3-rope": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-sliding": MistralConfig(**SIZES, sliding_window=6),
    "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=6, query_pre_attn_scalar=16),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
    ),
}
FAST = frozenset(
    {
        "llama",
        "llama-biased",
        "llama-wide",
        "llama-tied",
        "llama3-rope",
        "qwen2",
        "qwen3",
        "mistral",
    }
)


def small_model(architecture: str = "llama", seed: int = 0) -> Any:
    """A random model of an architecture."""
    return model_of(ARCHITECTURES[architecture], seed)


def model_of(config: Any, seed: int = 0) -> Any:
    """A model whose biases and norms are random as well."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            nn.init.normal_(parameter, 1.0 if name.endswith("norm.weight") else 0.0, 0.3)
    return model.eval()


def decode(tokens: Sequence[int]) -> str:
    """One character per token, from space on."""
    return "".join(chr(32 + token) for token in tokens)


def small_policy(architecture: str = "llama-wide", seed: int = 0, model: Any = None) -> Policy:
    """A small model (or the given one) with a tokenizer whose tokens are those of `decode`."""
    vocabulary = {decode([token]): token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return Policy(model or small_model(architecture, seed), fast, name="small")
