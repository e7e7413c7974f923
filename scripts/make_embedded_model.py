"""Build the small language model that ships inside polyopt.

The model is a Llama of about 0.4 million parameters that half knows one reasoning-gym task,
``chain_sum``: the sum and difference of five or six one-digit numbers.  It is trained here from
scratch, by supervised learning on correct solutions that this script writes for generated
problems, and never sees a reward.  Its partial competence has two honest causes:

* **A terse habit.**  In the first part of training nearly every solution works the sum out,
  operator by operator; in the last part more than half of them state the answer at once, which
  the model has then had too little practice to do well.  Afterwards it does both, by chance.
* **Early stopping.**  Training stops while the model still slips on single steps.

Reinforcement learning can therefore gain by preferring the habit that works, and by slipping
less.  Neither is memorising: no problem of the held-out stream is among the training problems.

reasoning-gym seeds item ``i`` of a dataset with ``seed + i``: two datasets are disjoint only if
their *ranges* ``[seed, seed + size)`` are, which is why ``STREAMS`` lies far apart.  A problem text
that occurs in the held-out stream is also left out of the training stream.

Run ``python scripts/make_embedded_model.py --help`` for the options.  The result is the same on
every run with the same options, library versions and number of threads.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from reasoning_gym.utils import extract_answer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TASK = "chain_sum"
TASK_CONFIG = {"min_terms": 5, "max_terms": 6, "min_digits": 1, "max_digits": 1}
STREAMS = {"tokenizer": 10_000_000, "training": 20_000_000, "held_out": 30_000_000}

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
ANSWER_TAGS = ("<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
FIRST_WORKED_SHARE = 0.95
IGNORED = -100

Entry = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What the command line decides."""

    out: Path
    seed: int
    threads: int
    steps: int
    batch_size: int
    learning_rate: float
    worked_share: float
    terse_part: float
    hidden_size: int
    layers: int
    heads: int
    eval_size: int


def parse_arguments() -> Settings:
    """Read the command line."""
    package = Path(__file__).resolve().parent.parent / "src" / "polyopt"
    parser = argparse.ArgumentParser(
        description="Build polyopt's embedded model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=package / "models" / "embedded", help="folder to write")
    add("--seed", type=int, default=0, help="seed of weights, habits and sampling")
    add("--threads", type=int, default=2, help="CPU threads")
    add("--steps", type=int, default=1000, help="supervised training steps")
    add("--batch-size", type=int, default=64, help="solutions per step")
    add("--learning-rate", type=float, default=3e-3, help="peak learning rate")
    add("--worked-share", type=float, default=0.45, help="share of working in the terse part")
    add("--terse-part", type=float, default=0.25, help="last part of training, mostly terse")
    add("--hidden-size", type=int, default=96, help="width of the model")
    add("--layers", type=int, default=3, help="number of transformer layers")
    add("--heads", type=int, default=4, help="attention heads per layer")
    add("--eval-size", type=int, default=500, help="held-out problems to score")
    return Settings(**vars(parser.parse_args()))


def make_dataset(stream: str, size: int) -> Any:
    """Return `size` problems of the task from one of the disjoint streams."""
    return reasoning_gym.create_dataset(TASK, seed=STREAMS[stream], size=size, **TASK_CONFIG)


def evaluate_stepwise(expression: str) -> tuple[str, int]:
    """Return the working of `expression`, ``12-3=9+4=13`` for ``12 - 3 + 4``, and its value."""
    first, *rest = expression.split()
    working, total = first, int(first)
    for operator, operand in zip(rest[::2], rest[1::2], strict=True):
        total += int(operand) if operator == "+" else -int(operand)
        working += f"{operator}{operand}={total}"
    return working, total


def write_solution(entry: Entry, worked: bool) -> str:
    """Return a correct solution, with the working before the answer if `worked`."""
    working, value = evaluate_stepwise(entry["metadata"]["expression"])
    answer = f"{ANSWER_TAGS[0]}{value}{ANSWER_TAGS[1]}"
    return f"{working} {answer}" if worked else answer


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE whose digits stay single and whose tags are one token each."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[PAD, BOS, EOS, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (entry["question"] for entry in make_dataset("tokenizer", 500))
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ANSWER_TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def render_prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """Return the tokens of a chat that asks `question` and waits for the reply."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def build_model(tokenizer: PreTrainedTokenizerFast, settings: Settings) -> LlamaForCausalLM:
    """Return a freshly initialised model for `tokenizer`."""
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.hidden_size * 11 // 4,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, **ids)
    return model


def training_examples(
    tokenizer: PreTrainedTokenizerFast, settings: Settings, held_out: set[str]
) -> Iterator[tuple[list[int], int]]:
    """Yield the tokens of one solved problem after another, and the length of its prompt."""
    habits = random.Random(settings.seed)
    total = settings.steps * settings.batch_size
    for index, entry in enumerate(make_dataset("training", 2 * total)):
        if entry["question"] in held_out:
            continue
        terse = index >= (1 - settings.terse_part) * total
        share = settings.worked_share if terse else FIRST_WORKED_SHARE
        solution = write_solution(entry, worked=habits.random() < share)
        prompt = render_prompt(tokenizer, entry["question"])
        reply = tokenizer.encode(solution, add_special_tokens=False)
        yield [*prompt, *reply, tokenizer.eos_token_id], len(prompt)


def collate(examples: list[tuple[list[int], int]], pad: int) -> dict[str, torch.Tensor]:
    """Pad examples on the right; only the tokens of replies carry a loss."""
    width = max(len(tokens) for tokens, _ in examples)
    ids = torch.full((len(examples), width), pad)
    labels = torch.full((len(examples), width), IGNORED)
    for row, (tokens, prompt_length) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt_length : len(tokens)] = torch.tensor(tokens[prompt_length:])
    return {"input_ids": ids, "labels": labels}


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: Settings,
    held_out: set[str],
) -> None:
    """Train `model` on solved problems, each seen once, with a one-cycle learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=0.1
    )
    stream = training_examples(tokenizer, settings, held_out)
    model.train()
    start = time.perf_counter()
    for step in range(1, settings.steps + 1):
        batch = collate(list(itertools.islice(stream, settings.batch_size)), tokenizer.pad_token_id)
        loss = model(**batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == settings.steps:
            seconds = time.perf_counter() - start
            print(f"step {step:5d}  loss {loss.item():.3f}  {seconds:6.1f} s", flush=True)


@torch.no_grad()
def write_replies(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[str],
    greedy: bool,
) -> list[str]:
    """Return one reply to each question, the likeliest tokens or a sample at temperature 1."""
    model.eval()
    prompts = [render_prompt(tokenizer, question) for question in questions]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0}
    output = model.generate(**batch, max_new_tokens=40, **how)
    replies = output[:, batch["input_ids"].shape[1] :]
    return tokenizer.batch_decode(replies, skip_special_tokens=True)


def report(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, held_out: Any, greedy: bool
) -> None:
    """Print the share of held-out problems solved, overall and by habit."""
    entries = list(held_out)
    replies = write_replies(model, tokenizer, [entry["question"] for entry in entries], greedy)
    solved: dict[bool, list[bool]] = {True: [], False: []}
    for entry, reply in zip(entries, replies, strict=True):
        score = held_out.score_answer(answer=extract_answer(reply), entry=entry)
        solved[not reply.startswith(ANSWER_TAGS[0])].append(score >= 1.0 - 1e-9)
    both = solved[True] + solved[False]
    print(f"held-out pass@1, {'greedy' if greedy else 'temperature 1'}, n={len(both)}:", end="")
    print(f" {sum(both) / len(both):.3f}", end="")
    for habit, outcomes in (("with working", solved[True]), ("at once", solved[False])):
        rate = sum(outcomes) / max(1, len(outcomes))
        print(f"; {habit} {len(outcomes) / len(both):.0%} of replies, {rate:.3f} right", end="")
    print(f"\n  e.g. {entries[0]['question']!r} -> {replies[0]!r}", flush=True)


def main() -> None:
    """Build, train, save and score the model."""
    settings = parse_arguments()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    held_out = make_dataset("held_out", settings.eval_size)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, settings)
    print(f"task: {TASK} {TASK_CONFIG}")
    print(f"model: {model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, settings, {entry["question"] for entry in held_out})
    settings.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)
    print(f"saved to {settings.out}")
    for greedy in (False, True):
        report(model, tokenizer, held_out, greedy)


if __name__ == "__main__":
    main()
