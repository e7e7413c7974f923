"""One forward of a Hugging Face causal LM as log-probabilities of chosen tokens."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from polyopt.distribution import Distribution
from polyopt.errors import UserError
from polyopt.models.activations import Activations
from polyopt.models.head_blocks import Foreseen
from polyopt.models.log_probs import log_probs, log_probs_from_logits
from polyopt.models.packing import Rows
from polyopt.models.recorder import Recorder
from polyopt.models.shared_prefix import Packed, PackedDecoder, pack


@dataclass(frozen=True)
class Scores:
    """What one forward says of M tokens.

    Attributes:
        logp: Log-probabilities in nats.
        entropy: Entropies in nats, if wanted.
        hidden: Hidden states that predict the tokens, if wanted.
    """

    logp: Float[Tensor, " M"]
    entropy: Float[Tensor, " M"] | None = None
    hidden: Float[Tensor, "M H"] | None = None


class Scorer:
    """Scores tokens under a model by the cheapest route that gives the model's own numbers.

    The quick route runs the decoder and applies the LM head only where tokens are predicted. It is
    right only if the model's logits are `head(decoder(ids))` and nothing else; models that cap or
    scale their logits (Gemma 2, Cohere, Granite) are found out by a check at first use and scored
    from the logits that the model itself returns.

    Attributes:
        model: A Hugging Face causal LM, or a peft model around one.
        decoder: The module that gives the last hidden states, None if it can't be told.
        head: The module that turns them into logits, None if it can't be told.
        share_prefix: Encode prompts that rows share once, where that gives the same numbers.
        packed: The decoder on packed rows.
    """

    def __init__(self, model: Any, *, share_prefix: bool = True) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        body = getattr(base, "base_model", None)
        self.model = model
        self.share_prefix = share_prefix
        self.decoder: Any = None if body is base else body
        self.head: Any = base.get_output_embeddings()
        self.packed = PackedDecoder(base, self.decoder)
        self._plain_head: bool | None = None

    @property
    def plain_head(self) -> bool:
        """Whether the model's logits are those of its head, untouched."""
        if self._plain_head is None:
            self._plain_head = _has_plain_head(self.model, self.decoder, self.head)
        return self._plain_head

    def __call__(
        self,
        rows: Rows,
        distribution: Distribution,
        want: Collection[str] = (),
        recorder: Recorder | None = None,
        foreseen: Foreseen | None = None,
    ) -> Scores:
        """Scores of the rows' predicted tokens; `want` may hold "entropy" and "hidden".

        Rows whose activations the recorder has aren't run through the decoder again. For `foreseen`
        see `log_probs`.
        """
        entropy = "entropy" in want
        hidden: Tensor | None
        if self.plain_head:
            states = hidden = self.hidden_states(rows, recorder)
            logp, entropies = self.head_log_probs(
                states, rows.targets, distribution, entropy, foreseen
            )
        else:
            logits, hidden = self._model_logits(rows, "hidden" in want)
            logp, entropies = log_probs_from_logits(
                logits, rows.targets, distribution, entropy=entropy
            )
        return Scores(logp, entropies, hidden if "hidden" in want else None)

    @torch.no_grad()
    def uniform_values(
        self, scores: Scores, targets: Tensor, distribution: Distribution
    ) -> Float[Tensor, " M"]:
        """Mean log-probability of the whole vocabulary at each place, without gradient.

        mean_v log p_v = mean_v z_v - logsumexp(z), and logsumexp(z) = z_target - log p_target, so
        what is there suffices: no second pass over the vocabulary.

        Raises:
            UserError: A model whose logits aren't those of its head, or a cut distribution.
        """
        if not self.plain_head or distribution.truncated or scores.hidden is None:
            raise UserError(
                "the mean over the vocabulary is only defined for uncut distributions of models "
                "with a plain LM head: drop --set rollouts.top_p/top_k/min_p, or the idea."
            )
        weight, bias = self.head.weight, self.head.bias
        offset = weight.mean(0) - weight[targets]
        shift = (scores.hidden.to(offset.dtype) * offset).sum(-1)
        if bias is not None:
            shift = shift + bias.mean() - bias[targets]
        tempered: Tensor = shift / distribution.temperature
        return scores.logp.detach() + tempered.to(scores.logp.dtype)

    def packs(self, longest: int) -> bool:
        """Whether rows of up to `longest` tokens are encoded packed, shared prompts once."""
        return self.share_prefix and self.plain_head and self.packed.takes(longest)

    def hidden_states(self, rows: Rows, recorder: Recorder | None = None) -> Tensor:
        """Last hidden states [M, H] that predict the rows' tokens."""
        if len(rows.row) and self.packs(rows.input_ids.shape[1]):
            packed = pack(rows)
            known = None if recorder is None else self._known(recorder, rows, packed)
            return self.packed(packed, known)
        return self.plain_hidden_states(rows)

    def _known(self, recorder: Recorder, rows: Rows, packed: Packed) -> Activations | None:
        """Recorded activations; now and then a row is computed as well: are they the model's?"""
        if recorder.due:
            self._look(recorder, next(rows.each()))
        return recorder.of(rows, packed) if recorder.trusted else None

    @torch.no_grad()
    def _look(self, recorder: Recorder, row: Rows) -> None:
        """Compare what is recorded of a row with what the model computes."""
        packed = pack(row)
        known = recorder.of(row, packed)
        if known is not None:
            recorder.check(self.packed(packed, known), self.plain_hidden_states(row))

    def plain_hidden_states(self, rows: Rows) -> Tensor:
        """The same by the decoder's own forward."""
        output = self.decoder(input_ids=rows.input_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state[rows.row, rows.position]
        return hidden

    def head_log_probs(
        self,
        hidden: Tensor,
        targets: Tensor,
        distribution: Distribution,
        entropy: bool,
        foreseen: Foreseen | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities [M] (and entropies) of targets from the hidden states [M, H]."""
        return log_probs(
            hidden,
            self.head.weight,
            targets,
            distribution,
            bias=self.head.bias,
            entropy=entropy,
            foreseen=foreseen,
        )

    def _model_logits(self, rows: Rows, want_hidden: bool) -> tuple[Tensor, Tensor | None]:
        """The model's own logits [M, V], and its last hidden states [M, H]."""
        extra: dict[str, Any] = {"output_hidden_states": True} if want_hidden else {}
        places, position = torch.unique(rows.position, return_inverse=True)
        if _keeps_logits(self.model):
            extra["logits_to_keep"] = places
        output = self.model(input_ids=rows.input_ids, use_cache=False, **extra)
        if "logits_to_keep" in extra and output.logits.shape[1] == len(places):
            logits = output.logits[rows.row, position]
        else:
            logits = output.logits[rows.row, rows.position]
        if not want_hidden:
            return logits, None
        return logits, output.hidden_states[-1][rows.row, rows.position]


def _keeps_logits(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in inspect.signature(base.forward).parameters


@torch.no_grad()
def _has_plain_head(model: Any, decoder: Any, head: Any) -> bool:
    """Whether logits = head(decoder(ids)), tried on three tokens.

    The head's output is replaced by numbers from -60 to 60, which must come out of the model
    unchanged: a cap or a scale shows whatever the present weights are. What enters the head must
    be the decoder's last hidden state.
    """
    if decoder is None or type(head) is not nn.Linear:
        return False
    ids = torch.arange(3, device=head.weight.device)[None] % head.weight.shape[0]
    seen: dict[str, Tensor] = {}

    def replace_output(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        ramp = torch.linspace(-60, 60, output.numel(), device=output.device)
        seen["hidden"], seen["logits"] = args[0], ramp.view_as(output).to(output.dtype)
        return seen["logits"]

    hook = head.register_forward_hook(replace_output)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
    if not seen or logits.shape != seen["logits"].shape:
        return False
    same_hidden = torch.allclose(hidden.float(), seen["hidden"].float(), rtol=1e-2, atol=1e-4)
    return same_hidden and torch.equal(logits, seen["logits"].to(logits.dtype))
