"""What `gpu.py` measures on: the device, a model of the shape of Qwen2.5-0.5B, and sizes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from workloads import Workload

from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy

BATCHES = (32, 128, 8, 1)


@dataclass(frozen=True)
class Setting:
    """What is measured where.

    Attributes:
        device: "cuda", or "cpu" for a dry run without one.
        shape: Sizes of the model.
        work: Sizes of a step.
        options: The command line, with `prompt`, `tokens`, `model` and `batches` for sampling.
    """

    device: str
    shape: Mapping[str, Any]
    work: Workload
    options: argparse.Namespace

    @property
    def cuda(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == "cuda"

    def model(self) -> Any:
        """A model of the shape with random weights, float32, on the device."""
        torch.manual_seed(0)
        with torch.device(self.device):
            return Qwen2ForCausalLM(Qwen2Config(**self.shape)).eval()

    def policy(self) -> Policy:
        """A policy of such a model that trains under bf16 autocast."""
        tokenizer = load_policy("embedded", device="cpu").tokenizer
        policy = load_policy(
            self.model(),
            tokenizer=tokenizer,
            device=self.device,
            dtype="bfloat16",
            chat_template="none",
        )
        policy.stop_ids = frozenset()
        return policy


QWEN = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY = QWEN | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}


def setting(options: argparse.Namespace) -> Setting:
    """The whole set, or its tiny shape for a dry run."""
    dry = options.dry
    work = Workload("qwen2", 2, 4, 12, 4) if dry else Workload("qwen2", 8, 8, 512, 128)
    options.model = "2 layers of 64" if dry else "Qwen2.5-0.5B shape, random weights"
    options.prompt, options.tokens = (8, 4) if dry else (128, 128)
    options.batches = (4, 1) if dry else BATCHES
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Setting(device, TINY if dry else QWEN, work, options)
