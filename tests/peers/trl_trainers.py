"""TRL's own loss and advantage code, called on a sample.

Both are methods of its trainers. A trainer is made without its constructor and given the
attributes that these methods read. Three methods are replaced, those that ask a model, a sampler
or reward functions: they return the sample's numbers instead.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from tests.peers.accumulation import LossAndGradient, differentiated
from tests.peers.random_batches import Sample, pieces

trl = pytest.importorskip("trl", reason="TRL isn't installed: `make peers`")


class ScriptedModel:
    """Gives every method of a TRL trainer what it would ask a model, a sampler or a reward for."""

    def script(self, batch: Batch) -> None:
        """Take prompts, completions, log-probabilities and rewards from a batch."""
        self.scripted = batch

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, width: int, *_: Any, **__: Any
    ) -> Any:
        logp = self.scripted[model.column][:, :width]
        return logp, torch.zeros_like(logp), None

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return self.scripted.rewards[:, None]

    def _generate(self, prompts: list[str]) -> Any:
        ids = [[7] * n for n in self.scripted["lengths"].tolist()]
        texts = ["text"] * len(ids)
        if isinstance(self, trl.RLOOTrainer):
            return [[1]] * len(ids), ids, texts
        return [[1]] * len(ids), ids, None, texts, None, {}, None, None


class ScriptedGRPO(ScriptedModel, trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """TRL's GRPO trainer without a model."""


class ScriptedRLOO(ScriptedModel, trl.RLOOTrainer):  # type: ignore[misc, name-defined]
    """TRL's RLOO trainer without a model."""


def scripted_gmpo() -> type:
    """TRL's experimental GMPO trainer without a model."""
    from trl.experimental.gmpo import GMPOTrainer

    return type("ScriptedGMPO", (ScriptedModel, GMPOTrainer), {})


def one_process() -> SimpleNamespace:
    """What the trainers use of accelerate, for a single process."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
        process_index=0,
        num_processes=1,
        is_main_process=True,
        sync_gradients=True,
    )


def trainer(kind: type, count: int = 1, **numbers: Any) -> Any:
    """A trainer with the attributes that its loss and advantages read, none of its constructor.

    Args:
        kind: One of the scripted trainers.
        count: Micro-batches that gradients are accumulated over.
        numbers: Attributes other than the defaults.
    """
    made: Any = object.__new__(kind)
    attributes = {
        "accelerator": one_process(),
        "args": _arguments(count),
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False, column="logp_old"),
        "ref_model": SimpleNamespace(column="logp_ref"),
        "state": SimpleNamespace(global_step=0),
        "current_gradient_accumulation_steps": count,
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        **_generation(),
    }
    vars(made).update(attributes | numbers)
    return made


def _arguments(count: int) -> SimpleNamespace:
    """What is read of a trainer's `args`."""
    return SimpleNamespace(
        delta=None,
        use_bias_correction_kl=False,
        steps_per_generation=count,
        gradient_accumulation_steps=count,
        per_device_train_batch_size=1,
        gradient_checkpointing_kwargs=None,
        report_to=[],
    )


def _generation() -> dict[str, Any]:
    """Attributes that only the scoring of completions reads."""
    return {
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "pad_to_multiple_of": None,
        "mask_truncated_completions": False,
        "num_iterations": 1,
        "reward_funcs": [None],
        "reward_func_names": ["scripted"],
        "reward_weights": torch.ones(1, dtype=torch.float64),
        "reward_clip_range": None,
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "normalize_advantages": False,
        "log_multimodal": False,
        "_logs": defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
    }


def advantages(kind: type, batch: Batch, **numbers: Any) -> Tensor:
    """Advantages [N] by a trainer's `_generate_and_score_completions`; groups are of one size."""
    size = len(batch) // len(torch.unique(batch.group))
    made = trainer(kind, num_generations=size, **numbers)
    made.script(batch)
    found: Tensor = made._generate_and_score_completions([{"prompt": "p"}] * len(batch))[
        "advantages"
    ]
    return found


def loss(kind: type, made: Sample, count: int = 1, **numbers: Any) -> LossAndGradient:
    """A trainer's `_compute_loss`, summed over `count` micro-batches that it accumulates.

    The first token's advantage is taken as the rollout's; all tokens of one have the same.
    """
    logp, batch = made.logp.clone().requires_grad_(), made.batch
    total = torch.zeros((), dtype=torch.float64)
    for rows in pieces(len(batch), count):
        part = batch.select(torch.arange(len(batch))[rows])
        inside = torch.arange(batch.width) < part["lengths"][:, None]
        kept = trainer(kind, count, max_completion_length=int(part["max_tokens"][0]), **numbers)
        kept.script(part.replace(logp=logp[rows]))
        inputs = {
            "prompt_ids": torch.ones(len(part), 1, dtype=torch.long),
            "prompt_mask": torch.ones(len(part), 1, dtype=torch.long),
            "completion_ids": torch.full(part.mask.shape, 7),
            "completion_mask": inside.long(),
            "tool_mask": part.mask.long(),
            "advantages": part["advantages"][:, 0],
            "old_per_token_logps": part["logp_old"],
            "ref_per_token_logps": part["logp_ref"],
            "old_logps": (part["logp_old"] * part.mask).sum(1),
            "num_items_in_batch": batch.mask.sum(),
        }
        total = total + kept._compute_loss(SimpleNamespace(column="logp"), inputs)
    return differentiated(total, logp)
