"""TRL's `GRPOTrainer` with the rewards shaping, advantages, selection and objective of a recipe.

    from polyopt.adapters.trl import GRPOTrainer
    trainer = GRPOTrainer(recipe="dapo+ktae", model=..., reward_funcs=..., train_dataset=...)
    trainer.train()

TRL chooses prompts, samples, scores and steps; the recipe says which rollouts, at what credit, and
with which loss. The coefficients of the loss belong to the whole optimizer batch, so gradient
accumulation changes nothing.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyopt.adapters.padded_tensors import credit, left_aligned, padded_batch, rows_of_ids
from polyopt.adapters.trl_config import agreed
from polyopt.batch import Batch, Prompt, concat
from polyopt.errors import DataError, UserError
from polyopt.objectives.protocol import Evaluation
from polyopt.parts import HasState, info_of, walk
from polyopt.recipe import Recipe
from polyopt.seeding import derive_seed
from polyopt.trainer import trained_metrics
from polyopt.updates.tally import TokenMeans

try:
    import trl  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise UserError(
        "polyopt.adapters.trl needs TRL, which isn't installed: pip install trl==1.16.0"
    ) from error

ROW, PART, KEPT = "polyopt_row", "polyopt_part", "polyopt_kept"
"""What is added to TRL's inputs: rollout ids; the micro-batch and the rows that it holds."""

FORWARD_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""Inputs that TRL hands to its forward where they are there."""

STATE_FILE = "polyopt_parts.pt"


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """TRL's trainer with a recipe's credit and loss.

    Args:
        model: As for TRL's trainer, like all further arguments.
        reward_funcs: The same.
        args: A `GRPOConfig`; fields that define the loss or the advantages must be left out, since
            the recipe defines them. None takes the recipe's numbers.
        recipe: An expression such as `"dapo+ktae"`, or a `Recipe`.

    Raises:
        UserError: The recipe needs what TRL's trainer doesn't give, or contradicts `args`.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        *further: Any,
        recipe: str | Recipe,
        **named: Any,
    ) -> None:
        built, args = agreed(recipe, args, trl.GRPOConfig)
        self.recipe = copy.deepcopy(built)
        _warn_of_refills(self.recipe)
        self._columns = _columns_before_update(self.recipe)
        self._rollouts = 0
        self._rewards = torch.empty(0)
        self._credited: Batch | None = None
        self._boundary: list[Tensor] = []
        super().__init__(model, reward_funcs, args, *further, **named)
        if self.accelerator.num_processes > 1:
            raise UserError(
                f"{self.accelerator.num_processes} processes: polyopt's trainer for TRL runs in "
                "one process. Launch it with one, or train with polyopt itself."
            )

    # --- credit -------------------------------------------------------------------------------

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        """TRL's rewards per function; kept, because TRL only returns advantages."""
        rewards: Tensor = super()._calculate_rewards(*args, **named)
        self._rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts, with the recipe's advantages [N, T] in place of TRL's [N]."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        training = self.model.training
        batch = self._batch(inputs, output)
        recipe = self.recipe if training else copy.deepcopy(self.recipe)
        credited = credit(recipe, batch)
        there, place = rows_of_ids(credited, batch.rollout)
        advantages = credited["advantages"].new_zeros(batch.mask.shape)
        advantages[there] = credited["advantages"][place]
        self._credited = credited
        self._log_credit(credited, advantages, batch.mask, "train" if training else "eval")
        device = output["completion_ids"].device
        return output | {"advantages": advantages.to(device), ROW: batch.rollout}

    def _batch(self, inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any]) -> Batch:
        """TRL's padded tensors as a batch, with every column that a part reads."""
        inside = output["completion_mask"].bool()
        tool = output.get("tool_mask")
        own = inside if tool is None else inside & tool.bool()
        size = self.num_generations if self.model.training else self.num_generations_eval
        ids = output["completion_ids"]
        visit = torch.arange(len(ids), device=ids.device) // size
        prompts, lengths = left_aligned(output["prompt_ids"], output["prompt_mask"])
        batch = padded_batch(
            own=own,
            inside=inside,
            group=self._rollouts + visit,
            rewards=self._total_rewards(),
            max_tokens=self.max_completion_length,
            first_id=self._rollouts,
            prompts=self._prompts(inputs, size),
            texts=self.processing_class.batch_decode(
                [row[mask].tolist() for row, mask in zip(ids, inside, strict=True)],
                skip_special_tokens=True,
            ),
            columns={
                "tokens": ids.masked_fill(~inside, 0),
                "prompt_tokens": prompts,
                "prompt_lengths": lengths,
                "truncated": self._truncated(ids, inside),
                **self._term_columns(),
                **self._computed_columns(output),
            },
        )
        self._rollouts += len(batch)
        return batch.to("cpu")  # where parts work, here as in polyopt's own trainer

    def _total_rewards(self) -> Tensor:
        """Weighted sum over reward functions [N]; NaN where none could score a row."""
        weights = self.reward_weights.to(self._rewards.device)
        total: Tensor = (self._rewards * weights).nansum(1)
        return total.masked_fill(self._rewards.isnan().all(1), float("nan"))

    def _term_columns(self) -> dict[str, Tensor]:
        names = self.reward_func_names
        return {f"reward/{name}": self._rewards[:, i] for i, name in enumerate(names)}

    def _prompts(self, inputs: Sequence[Mapping[str, Any]], size: int) -> list[Prompt]:
        """The rows of the data set as prompts.

        Raises:
            DataError: A column is missing that some part needs of every prompt, or rows that TRL
                placed together aren't of one prompt.
        """
        needs = {n.removeprefix("metadata:") for n in self.recipe.needs() if "metadata:" in n}
        for name in sorted(needs - set(inputs[0])):
            raise DataError(
                f"{self.recipe.name!r} needs {name!r} with every prompt: add a column {name!r} to "
                f"train_dataset (it has: {', '.join(sorted(inputs[0]))}), or drop the idea."
            )
        made = []
        for i, row in enumerate(inputs):
            if row.get("prompt") != inputs[i - i % size].get("prompt"):
                raise DataError(f"rollout {i} isn't of the prompt of its group of {size}")
            prompt = row.get("prompt", "")
            messages = prompt if isinstance(prompt, str) else tuple(prompt)
            rest = {name: value for name, value in row.items() if name != "prompt"}
            name = str(row.get("id", f"prompt/{derive_seed(repr(prompt)):x}"))
            made.append(Prompt(name, messages, row.get("answer"), rest))
        return made

    def _truncated(self, ids: Tensor, inside: Tensor) -> Tensor:
        """Rows whose last token doesn't end a completion [N] bool."""
        ends = [*self.eos_token_ids, self._tokenizer.pad_token_id]
        last = ids.gather(1, (inside.sum(1) - 1).clamp(min=0)[:, None])[:, 0]
        return ~torch.isin(last, torch.tensor(ends, device=ids.device)) & inside.any(1)

    def _computed_columns(self, output: Mapping[str, Any]) -> dict[str, Tensor]:
        """Log-probabilities and entropies that TRL has or some part needs before the update."""
        names = {
            "logp_old": "old_per_token_logps",
            "logp_ref": "ref_per_token_logps",
            "logp_sampler": "sampling_per_token_logps",
        }
        found = {n: output[key] for n, key in names.items() if output.get(key) is not None}
        missing = self._columns - set(found)
        if missing:
            with torch.no_grad():
                size = self.args.per_device_train_batch_size
                logp, entropy, _ = self._forward(self.model, output, size)
            fresh = {"logp_old": logp, "logp_sampler": logp, "entropy": entropy}
            found |= {name: fresh[name] for name in missing}
        if output.get("importance_sampling_ratio") is not None:
            ratio = output["importance_sampling_ratio"]
            found["weights"] = ratio.expand(output["completion_ids"].shape)
        return found

    def _log_credit(self, credited: Batch, advantages: Tensor, mask: Tensor, mode: str) -> None:
        """Metrics of what trains, and the trained advantages in TRL's table of completions."""
        for name, value in trained_metrics(credited).items():
            self._metrics[mode][name].append(value)
        log = self._logs["advantages"]
        for _ in range(min(len(mask), len(log))):
            log.pop()
        log.extend((advantages.sum(1) / mask.sum(1).clamp(min=1)).tolist())

    # --- loss ---------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's micro-batch, with its share of the optimizer batch that it belongs to."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            self._prepare_window([inputs])
        elif self._buffered_inputs is not before:
            for window in self._windows():
                self._prepare_window(window)
        return inputs

    def _windows(self) -> list[list[dict[str, Any]]]:
        """The buffered micro-batches, one list for each optimizer step."""
        count, buffered = self.args.gradient_accumulation_steps, self._buffered_inputs
        return [buffered[i : i + count] for i in range(0, len(buffered), count)]

    def _prepare_window(self, window: Sequence[dict[str, Any]]) -> None:
        """Coefficients of one optimizer batch, written to the micro-batches that it is cut into."""
        assert self._credited is not None
        ids = torch.cat([inputs[ROW] for inputs in window])
        trained = self._credited.select(rows_of_ids(self._credited, ids)[1])
        prepared = self.recipe.objective.prepare(trained) if len(trained) else trained
        for inputs in window:
            inputs[KEPT], rows = rows_of_ids(prepared, inputs[ROW])
            inputs[PART] = prepared.select(rows)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The micro-batch's summand of the recipe's loss over the whole optimizer batch."""
        logp, entropy, aux = self._forward(model, inputs)
        mode = "train" if self.model.training else "eval"
        count = self.current_gradient_accumulation_steps if mode == "train" else 1
        if self.recipe.objective.coupled and count > 1:
            loss = self._through_boundary(model, inputs, logp, entropy)
        else:
            loss = self._objective(inputs, logp, entropy, mode)
        loss = loss.to(logp.device)
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux / count
            self._metrics[mode]["aux_loss"].append(float(aux.detach()))
        return loss

    def _objective(
        self, inputs: Mapping[str, Any], logp: Tensor, entropy: Tensor, mode: str
    ) -> Tensor:
        """The objective at the rows that train, and its metrics logged."""
        kept, part = inputs[KEPT], inputs[PART]
        logp, entropy = logp.cpu()[kept], entropy.cpu()[kept]
        if not len(part):
            return logp.sum()
        if "logp_old" not in part:
            part = part.replace(logp_old=logp.detach())
        loss = self.recipe.objective(Evaluation(logp, entropy), part)
        means = TokenMeans()
        means.add(dict(loss.metrics) | {"entropy": entropy.detach()}, part.loss_mask)
        for name, value in means.means().items():
            self._metrics[mode][name].append(value)
        return loss.loss + logp[:0].sum()  # part of the graph, even where the loss is a constant

    def _through_boundary(
        self, model: Any, inputs: dict[str, Any], logp: Tensor, entropy: Tensor
    ) -> Tensor:
        """A loss that couples micro-batches, differentiated once at their log-probabilities.

        At the first micro-batch of a step, dL/dlogp is computed over all of them. Each one's loss
        is then (logp * dL/dlogp).sum(), whose value is shifted to its share of the whole loss.
        """
        count = self.args.gradient_accumulation_steps
        step = self._step % self.args.steps_per_generation
        window = self._windows()[step // count]
        if step % count == 0:
            self._boundary = self._gradients_at_boundary(model, window)
        logp_grad, entropy_grad, whole = self._boundary[3 * (step % count) :][:3]
        linear = (logp * logp_grad).sum() + (entropy * entropy_grad).sum()
        return linear - linear.detach() + whole

    def _gradients_at_boundary(self, model: Any, window: Sequence[dict[str, Any]]) -> list[Tensor]:
        """For each micro-batch dL/dlogp, dL/dentropy and its share of the loss, in one list."""
        with torch.no_grad():
            found = [self._forward(model, inputs)[:2] for inputs in window]
        logp, entropy = (torch.cat(values).requires_grad_() for values in zip(*found, strict=True))
        parts = [inputs[PART] for inputs in window]
        sizes = [len(inputs[ROW]) for inputs in window]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        kept = torch.cat([i[KEPT] + start for i, start in zip(window, starts, strict=True)])
        whole = {KEPT: kept, PART: concat(parts)}
        loss = self._objective(whole, logp, entropy, "train")
        grads = torch.autograd.grad(
            loss, [logp, entropy], allow_unused=True, materialize_grads=True
        )
        pairs = zip(*(torch.split(grad, sizes) for grad in grads), strict=True)
        share = loss.detach().to(logp.device) / len(window)
        return [item for pair in pairs for item in (*pair, share)]

    def _forward(
        self, model: Any, inputs: Mapping[str, Any], batch_size: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """TRL's log-probabilities and entropies [N, T], and the auxiliary loss if it is enabled."""
        completion = inputs["completion_ids"]
        found: tuple[Tensor, Tensor, Tensor] = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], completion], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            completion.shape[1],
            batch_size=batch_size,
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled and batch_size is None,
            **{key: inputs[key] for key in FORWARD_KEYS if inputs.get(key) is not None},
        )
        return found

    # --- memory -------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint, with what the recipe's parts remember."""
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        parts = {p: i.state_dict() for p, i in walk(self.recipe) if isinstance(i, HasState)}
        torch.save({"rollouts": self._rollouts, "parts": parts}, folder / STATE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The same on resuming."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not (Path(checkpoint) / STATE_FILE).exists():
            return
        state = torch.load(Path(checkpoint) / STATE_FILE, weights_only=False)
        self._rollouts = state["rollouts"]
        for path, item in walk(self.recipe):
            if isinstance(item, HasState):
                item.load_state_dict(state["parts"][path])


def _columns_before_update(recipe: Recipe) -> frozenset[str]:
    """Columns that take a forward before the update, because some part reads them then."""
    parts = [info_of(item) for path, item in walk(recipe) if not path.startswith("objective")]
    needs = {name for info in parts if info for name in info.needs}
    if "logp_ref" in needs:  # compared with the sampler's
        needs |= {"logp_sampler"}
    needs |= recipe.objective.needs - {"logp_old"}
    return frozenset(needs & {"logp_old", "logp_sampler", "entropy"})


def _warn_of_refills(recipe: Recipe) -> None:
    """TRL samples a fixed number of prompts a step: screens act, replacements aren't sampled."""
    if recipe.selection.rounds > 1:
        warnings.warn(
            f"{recipe.name!r} asks for replacements of the groups that its screens leave out; "
            "TRL's trainer samples none, so such steps train on fewer groups.",
            stacklevel=3,
        )
