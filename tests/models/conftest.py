"""Tiny random models of several architectures, a character tokenizer, and batches for them."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyopt.batch import Batch
from polyopt.models.policy import Policy

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|end|>"]
VOCAB = {token: i for i, token in enumerate(SPECIAL + list(string.printable))}
SMALL = {
    "vocab_size": len(VOCAB),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_tokenizer(*, bos: bool = True, eos: bool = False, pad: str = "<pad>") -> Any:
    """One token per character; puts BOS before a text, and EOS after it if asked to."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(vocab=VOCAB, merges=[], unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    single = (["<s>"] if bos else []) + ["$A"] + (["</s>"] if eos else [])
    raw.post_processor = processors.TemplateProcessing(
        single=" ".join(single), special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token=pad
    )


def make_model(kind: str, **changes: Any) -> Any:
    """A random model with weights large enough that its logits differ clearly."""
    import transformers as hf

    config = {
        "llama": lambda c: hf.LlamaConfig(**c),
        "qwen2": lambda c: hf.Qwen2Config(**c),
        "mistral": lambda c: hf.MistralConfig(**{"sliding_window": 4, **c}),
        "gemma2": lambda c: hf.Gemma2Config(
            **{"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 8, **c}
        ),
        "granite": lambda c: hf.GraniteConfig(logits_scaling=3.0, **c),
        "gpt2": lambda c: hf.GPT2Config(
            vocab_size=len(VOCAB),
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=2,
            **changes,
        ),
    }[kind]({**SMALL, **changes})
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def make_batch(seed: int = 0, rows: int = 6, width: int = 9, **columns: Any) -> Batch:
    """Rows of several lengths, in three groups that share a prompt, with holes in the mask."""
    g = torch.Generator().manual_seed(seed)
    group = torch.arange(rows) // 2 * 10
    prompt_width = 7
    prompts = torch.randint(5, len(VOCAB), (rows, prompt_width), generator=g)
    prompt_lengths = torch.randint(2, prompt_width + 1, (rows,), generator=g)
    for row in range(rows):
        first = int((group == group[row]).nonzero()[0])
        prompts[row], prompt_lengths[row] = prompts[first], prompt_lengths[first]
    lengths = torch.randint(1, width, (rows,), generator=g)
    place = torch.arange(width)
    tokens = torch.randint(2, len(VOCAB), (rows, width), generator=g)
    mask = (place < lengths[:, None]) & (torch.rand(rows, width, generator=g) < 0.8)
    return Batch.of(
        mask=mask,
        group=group,
        tokens=torch.where(place < lengths[:, None], tokens, 0),
        lengths=lengths,
        prompt_tokens=torch.where(torch.arange(prompt_width) < prompt_lengths[:, None], prompts, 0),
        prompt_lengths=prompt_lengths,
        **columns,
    )


def slow_log_probs(model: Any, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """The obvious way: one row at a time, full logits, no padding. [N, T]"""
    rows = []
    for i in range(len(batch)):
        p, c = int(batch["prompt_lengths"][i]), int(batch["lengths"][i])
        ids = torch.cat([batch["prompt_tokens"][i, :p], batch["tokens"][i, :c]])
        logits = model(input_ids=ids[None], use_cache=False).logits[0] / temperature
        logp = logits.log_softmax(-1)[p - 1 : p + c - 1].gather(1, ids[p:, None])[:, 0]
        row = torch.zeros(batch.width, dtype=logp.dtype)
        rows.append(torch.cat([logp, row[c:]]))
    return torch.stack(rows) * batch.mask


@pytest.fixture
def model_of() -> Callable[..., Any]:
    """Makes a tiny random model of an architecture."""
    return make_model


@pytest.fixture
def tokenizer_of() -> Callable[..., Any]:
    """Makes a character tokenizer."""
    return make_tokenizer


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """Makes a ragged batch."""
    return make_batch


@pytest.fixture
def slowly() -> Callable[..., torch.Tensor]:
    """Log-probabilities computed the obvious way."""
    return slow_log_probs


@pytest.fixture
def policy_of() -> Callable[..., Policy]:
    """Makes a policy around a tiny random model."""

    def make(kind: str = "llama", model: Any = None, **options: Any) -> Policy:
        return Policy(model or make_model(kind), make_tokenizer(), **options)

    return make
