"""TRL's `GRPOTrainer` on a workload, one optimizer step at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workloads import LEARNING_RATE, Workload, prompt_texts, share_of_spaces

NO_STOP = -1
"""A token id that is never sampled: completions end at their length only, as on our side."""


def name() -> str:
    """The peer with its version.

    Raises:
        PackageNotFoundError: TRL isn't installed.
    """
    return f"trl {version('trl')}"


def train(
    work: Workload,
    folder: Path,
    begin: Callable[[], bool],
    end: Callable[[float], None],
    *,
    checkpointing: bool = False,
    cpu: bool = True,
    low: bool = False,
) -> None:
    """Train until `begin`, called before each optimizer step, says False.

    A step is generation, rewards, forward, backward and optimizer: what lies between TRL's
    `on_step_begin` and `on_step_end`.

    Args:
        work: Sizes.
        folder: The model.
        begin: Called before a step; False stops the training.
        end: Called after it, with the number of tokens that were sampled.
        checkpointing: Recompute activations, which is TRL's default, instead of keeping them.
        cpu: Leave a GPU alone.
        low: bf16 autocast.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    class Steps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not begin():
                raise _Stopped

        def on_step_end(self, *_: Any, **__: Any) -> None:
            lengths = trainer._metrics["train"]["completions/mean_length"]
            end(lengths[-1] * work.rows)

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    texts = prompt_texts(work, tokenizer)
    trainer = GRPOTrainer(
        model=str(folder),
        args=_config(work, folder / "scratch", checkpointing, cpu, low),
        reward_funcs=lambda completions, **_: share_of_spaces(completions),
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=tokenizer,
        callbacks=[Steps()],
    )
    trainer.eos_token_ids = [NO_STOP]
    with suppress(_Stopped):
        trainer.train()


class _Stopped(Exception):
    """Ends the training without one more step."""


def _config(work: Workload, scratch: Path, checkpointing: bool, cpu: bool, low: bool) -> Any:
    from trl import GRPOConfig

    micro = work.peer_rows or work.rows
    return GRPOConfig(
        output_dir=str(scratch),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=work.rows // micro,
        num_generations=work.rollouts,
        max_completion_length=work.new_tokens,
        generation_kwargs={"eos_token_id": NO_STOP},
        max_steps=100_000,
        learning_rate=LEARNING_RATE,
        beta=0.0,
        temperature=1.0,
        bf16=low,
        use_cpu=cpu,
        gradient_checkpointing=checkpointing,
        report_to=[],
        save_strategy="no",
        logging_steps=100_000,
        disable_tqdm=True,
    )
