"""`Policy`: the model that is trained, with its tokenizer, seen through log-probabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyopt.batch import Batch, Prompt
from polyopt.distribution import Distribution, apply_distribution
from polyopt.errors import UserError
from polyopt.models.gradient_checkpointing import enable_checkpointing
from polyopt.models.head_blocks import Foreseen
from polyopt.models.log_probs import check_trainable
from polyopt.models.matrix_products import fast_linear
from polyopt.models.packing import longest_row, micro_batches, rows_of, shared_micro_batches
from polyopt.models.prompt_text import encode_prompt, stop_ids_of, use_chat_template
from polyopt.models.recorder import Recorder
from polyopt.models.reference import Reference, prepare_reference
from polyopt.models.saving import save_policy
from polyopt.models.scoring import Scorer
from polyopt.models.value_head import ValueHead
from polyopt.objectives.protocol import Evaluation

Precision = Literal["float32", "bfloat16"]


class Policy:
    """A Hugging Face causal LM in training.

    Dropout is always off, so that sampling, old, current and reference passes are passes of one
    and the same policy and equal weights give ratios of exactly 1.

    Attributes:
        model: The Hugging Face causal LM, or the peft model around it.
        tokenizer: Its tokenizer.
        version: Version of the weights; whoever takes an optimizer step raises it by 1.
        stop_ids: Token ids that end a completion.
        value_head: Estimates values from hidden states, if there is one.
        precision: "float32", or "bfloat16" for bf16 autocast over the stored weights.
        name: What the model is called in messages.
        recorder: Keeps activations of tokens as they are sampled, for models that can use them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        value_head: ValueHead | None = None,
        precision: Precision = "float32",
        chat_template: str = "auto",
        gradient_checkpointing: bool = False,
        shared_prefix: bool = True,
        name: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._token_texts: dict[int, str] = {}
        self.version = 0
        self.stop_ids = stop_ids_of(model, tokenizer)
        self.value_head = value_head
        self.precision = precision
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.gradient_checkpointing = gradient_checkpointing
        self._chat = use_chat_template(tokenizer, chat_template)
        if gradient_checkpointing:
            enable_checkpointing(model)
        self._scorer = Scorer(model, share_prefix=shared_prefix)
        stack = self._scorer.packed.stack if shared_prefix else None
        self.recorder = None if stack is None else Recorder(stack, model)
        self._reference: Reference | None = None
        self.settle()

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def settle(self) -> None:
        """Put the model in evaluation mode (no dropout), whatever mode it was left in.

        Layers of a checkpointed model are marked as training, for that is what makes them
        checkpoint; the dropout modules inside them are not.
        """
        self.model.eval()
        if self.gradient_checkpointing:
            for module in self.model.modules():
                if getattr(module, "gradient_checkpointing", False):
                    module.training = True

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which every forward of this policy runs, the engine's included."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def encode(
        self, prompt: Prompt, addition: str = "", system: str | None = None
    ) -> tuple[int, ...]:
        """Token ids of a prompt: chat template or plain text, at most one BOS, never an EOS.

        Args:
            prompt: Chat messages or plain text.
            addition: Text put at the end of the last user message (or of the text).
            system: A system message put first (or text put before the text).

        Raises:
            UserError: Chat messages, and the model has no chat template or its template rejects
                them; or a prompt of no tokens.
        """
        return encode_prompt(
            self.tokenizer,
            prompt,
            addition=addition,
            system=system,
            chat=self._chat,
            name=self.name,
        )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids, without special tokens unless asked for."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:  # what `tokenizer.decode` comes to, after checks of each id
            return str(backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return str(
            self.tokenizer.decode(
                list(ids),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a whole completion, ended by a stop token."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return (*ids, min(self.stop_ids)) if self.stop_ids else tuple(ids)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special ones included; for display only."""
        for token in set(ids) - self._token_texts.keys():
            self._token_texts[token] = self.decode([token], skip_special_tokens=False)
        return [self._token_texts[token] for token in ids]

    def evaluate(
        self,
        batch: Batch,
        distribution: Distribution,
        want: Collection[str] = (),
        foreseen: tuple[Tensor, Tensor] | None = None,
    ) -> Evaluation:
        """One forward of a micro-batch, with gradients as the ambient grad mode has it.

        Args:
            batch: Rows with `tokens`, `lengths`, `prompt_tokens` and `prompt_lengths`.
            distribution: What the tokens were sampled from.
            want: "entropy" and "values" ask for those.
            foreseen: Log-probabilities [N, T] that will come out up to rounding, and the gradient
                [N, T] that they will get, where both are known; saves time, changes nothing.

        Returns:
            Log-probabilities in nats (and entropies, values) [N, T] in float32 on the batch's
            device; 0 outside `mask`. Values are read where the token is predicted, that is before
            it, and never tempered.

        Raises:
            UserError: Values wanted without a value head; temperature 0.
        """
        if "values" in want and self.value_head is None:
            raise UserError(
                f"values are wanted, but {self.name} was loaded without a value head; load it "
                "with value_head=True."
            )
        if self.model.training:
            self.settle()
        return self._score(self._scorer, batch, distribution, want, foreseen)

    @torch.no_grad()
    def evaluate_all(
        self,
        batch: Batch,
        distribution: Distribution,
        want: Collection[str] = (),
        micro_tokens: int = 16384,
    ) -> Evaluation:
        """`evaluate` without gradients over micro-batches of `micro_tokens`, in order of row."""
        parts = []
        index = self.micro_batches(batch, micro_tokens)
        for rows in index:
            parts.append(self.evaluate(batch.select(rows), distribution, want))
        return _in_order(batch, index, parts)

    @torch.no_grad()
    def hidden_states(self, batch: Batch, micro_tokens: int = 16384) -> Float[Tensor, "N T H"]:
        """Last hidden states at the places that predict the masked tokens; 0 elsewhere."""
        size = int(self.model.get_output_embeddings().weight.shape[1])
        whole = torch.zeros(*batch.mask.shape, size)
        for index in self.micro_batches(batch, micro_tokens):
            rows = rows_of(batch.select(index)).to(self.device)
            with self.autocast():
                hidden = self._scorer(rows, Distribution(), {"hidden"}).hidden
            if hidden is not None:
                where = (index[rows.row.cpu()], rows.column.cpu())
                whole.index_put_(where, hidden.float().cpu())
        return whole

    @property
    def head_size(self) -> int:
        """Entries of the vocabulary, as the LM head has them."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @torch.no_grad()
    def vocabulary_log_probs(
        self, hidden: Float[Tensor, "*B H"], distribution: Distribution
    ) -> Float[Tensor, "*B V"]:
        """Log-probabilities in nats of the whole vocabulary, from last hidden states."""
        head = self.model.get_output_embeddings()
        logits = head(hidden.to(self.device, head.weight.dtype)).float()
        return apply_distribution(logits, distribution).log_softmax(-1)

    def micro_batches(self, batch: Batch, micro_tokens: int) -> list[Int[Tensor, " rows"]]:
        """Row indices of micro-batches that encode at most `micro_tokens` tokens each.

        Where shared prompts are encoded once, rows of one prompt stay together; else rows of like
        length do, and padding counts.
        """
        if not len(batch) or not self._scorer.packs(longest_row(batch)):
            return micro_batches(batch, micro_tokens)
        recorder = self._recorded()
        if recorder is None:
            return shared_micro_batches(batch, micro_tokens)
        known = recorder.known(rows_of(batch))
        others = (~known).nonzero()[:, 0]
        splits = shared_micro_batches(batch.select(others), micro_tokens) if len(others) else []
        first = [known.nonzero()[:, 0]] if bool(known.any()) else []
        return first + [others[rows] for rows in splits]

    @contextlib.contextmanager
    def recording(self, most_tokens: int) -> Iterator[None]:
        """Inside, engines in this process keep activations of what they sample.

        They serve `evaluate` until the weights change.

        Args:
            most_tokens: Tokens that there is memory for; others are computed again.
        """
        if self.recorder is None or self.precision != "float32":
            yield
            return
        self.recorder.begin(most_tokens, self.version)
        try:
            yield
        finally:
            self.recorder.end()

    def _recorded(self) -> Recorder | None:
        """The recorder, if what it has was computed with the present weights."""
        recorder = self.recorder
        return recorder if recorder is not None and recorder.holds(self.version) else None

    def prepare_reference(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Make the present weights, or given ones, the reference policy; a second call moves it.

        To be called before training starts, and before a checkpoint is loaded on resuming.
        """
        self._reference = prepare_reference(self._scorer, weights)

    @torch.no_grad()
    def reference_log_probs(
        self, batch: Batch, distribution: Distribution, micro_tokens: int = 16384
    ) -> Float[Tensor, "N T"]:
        """Log-probabilities in nats [N, T] under the reference policy; 0 outside `mask`.

        Raises:
            RuntimeError: The policy was trained before a reference was prepared.
        """
        if self._reference is None:
            if self.version > 0:
                raise RuntimeError(
                    f"the policy is at version {self.version} and no reference was prepared; call "
                    "prepare_reference() before the first optimizer step"
                )
            self.prepare_reference()
        assert self._reference is not None
        parts = []
        index = self.micro_batches(batch, micro_tokens)
        with self._reference.active() as scorer:
            for rows in index:
                parts.append(self._score(scorer, batch.select(rows), distribution, ()))
        return _in_order(batch, index, parts).logp

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Parameters that an optimizer is to update: the model's and the value head's."""
        own = [p for p in self.model.parameters() if p.requires_grad]
        return own + (list(self.value_head.parameters()) if self.value_head is not None else [])

    def state_dict(self) -> dict[str, Any]:
        """Version, trained weights and value head, exactly; the tensors are the live ones."""
        head = None if self.value_head is None else dict(self.value_head.state_dict())
        return {
            "version": self.version,
            "model": {name: p.detach() for name, p in self._trained().items()},
            "value_head": head,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            UserError: The state is of a policy with other weights.
        """
        trained = self._trained()
        shapes = {name: tuple(p.shape) for name, p in trained.items()}
        given = {name: tuple(weight.shape) for name, weight in state["model"].items()}
        odd = sorted({*shapes.items()} ^ {*given.items()})
        if odd or (state["value_head"] is None) != (self.value_head is None):
            where = f"weight {odd[0][0]!r}" if odd else "the value head"
            raise UserError(
                f"the checkpoint is of another policy than {self.name}: it differs in {where}; "
                "load the policy with the model, lora and value_head of the run that wrote it."
            )
        with torch.no_grad():
            for name, weight in state["model"].items():
                trained[name].copy_(weight)
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])
        self.version = int(state["version"])

    def save(self, folder: str | Path, *, merged: bool = True) -> None:
        """Write the policy in Hugging Face format, for `AutoModelForCausalLM.from_pretrained`.

        Args:
            folder: Where to; made if missing. A LoRA adapter goes to `folder/adapter`, a value
                head to `folder/value_head.safetensors`.
            merged: With LoRA, also write the model with the adapter merged into it.
        """
        save_policy(
            Path(folder), self.model, self.tokenizer, value_head=self.value_head, merged=merged
        )

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _score(
        self,
        scorer: Scorer,
        batch: Batch,
        distribution: Distribution,
        want: Collection[str],
        foreseen: tuple[Tensor, Tensor] | None = None,
    ) -> Evaluation:
        check_trainable(distribution)
        rows = rows_of(batch).to(self.device)
        if not len(batch):
            return _in_order(batch, [], [])
        needs = {"hidden"} if {"values", "uniform_value"} & set(want) else set()
        plain = self.precision == "float32" and self.device.type == "cpu"
        with self.autocast(), fast_linear(plain):
            recorder = self._recorded() if scorer is self._scorer else None
            asked = needs | ({"entropy"} & set(want))
            flat_foreseen = None if foreseen is None else Foreseen(*map(rows.gather, foreseen))
            scores = scorer(rows, distribution, asked, recorder, flat_foreseen)
        flat = {"logp": scores.logp, "entropy": scores.entropy}
        if "values" in want and self.value_head is not None and scores.hidden is not None:
            flat["values"] = self.value_head(scores.hidden)
        if "uniform_value" in want:
            flat["uniform_value"] = scorer.uniform_values(scores, rows.targets, distribution)
        device = batch.mask.device
        placed = {n: rows.scatter(v).to(device) for n, v in flat.items() if v is not None}
        return Evaluation(**placed)


def _in_order(batch: Batch, index: Sequence[Tensor], parts: Sequence[Evaluation]) -> Evaluation:
    """The evaluations of micro-batches as one, in the batch's order of rows."""

    def place(pieces: list[Tensor]) -> Tensor:
        whole = torch.zeros(batch.mask.shape, device=batch.mask.device)
        if pieces:
            whole = whole.to(pieces[0].dtype)
            whole[torch.cat(list(index)).to(whole.device)] = torch.cat(pieces)
        return whole

    def optional(pieces: list[Tensor | None]) -> Tensor | None:
        present = [piece for piece in pieces if piece is not None]
        return place(present) if present else None

    return Evaluation(
        place([part.logp for part in parts]),
        optional([part.entropy for part in parts]),
        optional([part.values for part in parts]),
        optional([part.uniform_value for part in parts]),
    )
