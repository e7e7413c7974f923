"""Seconds of one whole GRPO step against TRL's `GRPOTrainer`, in one run.

    python benchmarks/step.py --workload a            # needs: pip install trl datasets

Same model, prompts, lengths, rollouts, dtype (float32) and threads; both sample exactly `new`
tokens for every rollout at temperature 1, judge them by the same reward and take one AdamW step on
all of them at once. The first step of each is a warm-up, the others count; medians are reported.
One JSON line with the ratio.

| workload | model | prompts x rollouts x (prompt + new tokens) |
|---|---|---|
| a | SmolLM2-135M | 4 x 8 x (173 + 64) |
| b | SmolLM2-135M | 4 x 8 x (1024 + 64), TRL in micro-batches of 8 |
| c | the embedded model | 32 x 8 x (16 + 32) |
| d | 4 layers of 128, 49152 tokens | 32 x 8 x (24 + 24) |
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from polyopt.batch import Prompt
from polyopt.ideas import build
from polyopt.models.loading import load_policy
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task
from polyopt.trainer import Trainer


@dataclass(frozen=True)
class Workload:
    """Sizes of one step; `peer_rows` is the micro-batch of the peer, where the whole won't fit."""

    model: str
    prompts: int
    rollouts: int
    prompt_tokens: int
    new_tokens: int
    peer_rows: int | None = None


WORKLOADS = {
    "a": Workload("smollm2", 4, 8, 173, 64),
    "b": Workload("smollm2", 4, 8, 1024, 64, peer_rows=8),
    "c": Workload("embedded", 32, 8, 16, 32),
    "d": Workload("small", 32, 8, 24, 24),
}


def model_folder(name: str, folder: Path) -> Path:
    """The workload's model in Hugging Face format."""
    if name == "small":
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        load_policy("smollm2").tokenizer.save_pretrained(folder)
        LlamaForCausalLM(config).save_pretrained(folder)
    else:
        load_policy(name).save(folder)
    return folder


def prompt_texts(work: Workload, tokenizer: Any) -> list[str]:
    """A text of exactly `prompt_tokens` tokens for each prompt."""
    words = tokenizer("1 + 2 + 3 + 4 = ", add_special_tokens=False)["input_ids"]
    texts = []
    for i in range(work.prompts):
        ids = (words[i % len(words) :] + words * work.prompt_tokens)[: work.prompt_tokens]
        texts.append(tokenizer.decode(ids))
    return texts


def share_of_spaces(completions: Sequence[str]) -> list[float]:
    """A reward that differs between rollouts and costs nothing."""
    return [text.count(" ") / (len(text) + 1) for text in completions]


def polyopt_seconds(work: Workload, folder: Path, texts: list[str], steps: int) -> list[float]:
    """Seconds of each step of polyopt's trainer."""
    policy = load_policy(folder, chat_template="none")
    policy.stop_ids = frozenset()

    def reward(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        return share_of_spaces(completions)

    prompts = [Prompt(str(i), text) for i, text in enumerate(texts)]
    numbers = {
        "prompts.per_step": work.prompts,
        "rollouts.per_prompt": work.rollouts,
        "rollouts.max_tokens": work.new_tokens,
        "updates.optimizer.lr": 1e-6,
        "objective.kl": "none",
    }
    task = Task("benchmark", prompts, [], (RewardTerm("spaces", reward),))
    trainer = Trainer(policy, task, build("grpo", numbers), steps=steps)
    return [trainer.step().metrics["seconds/step"] for _ in range(steps)]


def trl_seconds(work: Workload, folder: Path, texts: list[str], steps: int) -> list[float]:
    """Seconds of each step of TRL's trainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter() - self.start)

    rows = work.prompts * work.rollouts
    micro = work.peer_rows or rows
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        num_generations=work.rollouts,
        max_completion_length=work.new_tokens,
        generation_kwargs={"min_new_tokens": work.new_tokens},
        max_steps=steps,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(folder),
        args=config,
        reward_funcs=lambda completions, **_: share_of_spaces(completions),
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=[Timer()],
    )
    trainer.train()
    return times


def main() -> None:
    """Run both sides and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="a")
    parser.add_argument(
        "--steps", type=int, default=3, help="steps of each side, the first one warm-up"
    )
    parser.add_argument("--only", choices=["polyopt", "trl"], help="one side alone, for its memory")
    options = parser.parse_args()
    work = WORKLOADS[options.workload]
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(work.model, Path(name))
        texts = prompt_texts(work, AutoTokenizer.from_pretrained(folder))
        sides = {"polyopt": polyopt_seconds, "trl": trl_seconds}
        found = {
            side: statistics.median(run(work, folder, texts, options.steps)[1:])
            for side, run in sides.items()
            if options.only in (None, side)
        }
    line: dict[str, Any] = {"benchmark": "step", "workload": options.workload}
    line |= {f"{side}_seconds": round(value, 3) for side, value in found.items()}
    if len(found) == 2:
        line["ratio"] = round(found["trl"] / found["polyopt"], 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(line | {"threads": torch.get_num_threads(), "peak_rss_gb": round(peak, 2)}))


if __name__ == "__main__":
    main()
