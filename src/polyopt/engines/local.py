"""Sampling in this process, from any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polyopt.engines.admission import Queue, Ticket
from polyopt.engines.batching import Batching
from polyopt.engines.completions import Completions
from polyopt.engines.decoder import Decoder, Work
from polyopt.engines.fast_decoder import FastDecoder
from polyopt.engines.generic_decoder import GenericDecoder
from polyopt.engines.native_decoder import NativeDecoder
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.engines.stopping import Decode, Ending
from polyopt.errors import UserError
from polyopt.models.llama_like import why_not_native, why_unsupported
from polyopt.models.recorder import Recorder

if TYPE_CHECKING:
    from polyopt.models.policy import Policy


def choose_decoder(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that runs the model here; any model decodes by its own forward."""
    if why_not_native(model) is None:
        return NativeDecoder(model)
    if model.device.type == "cpu" and why_unsupported(model) is None:
        return FastDecoder(model)
    return GenericDecoder(model)


class LocalEngine:
    """Samples from a model in this process: shared prompts, continuous batching, forks.

    Each distinct prompt (and prefix) is computed once per call and its keys and values are shared
    by all requests that begin with it. Up to `max_rows` requests decode together; when one
    finishes, the next takes its place at once. Keys and values never take more than `cache_bytes`:
    a request gets a row only if its `max_tokens` are sure to fit.

    Guarantee: a request's sample depends on its own fields and the weights alone. The token at
    position t of the completion (prefix included) is the inverse, at the t-th draw of
    `numpy.random.Generator(numpy.random.Philox(seed))`, of the cumulative distribution function
    over the vocabulary in id order. Which other requests share the batch, their order, `max_rows`
    and `cache_bytes` change it only through floating-point rounding of the logits (about 1e-6
    relative in float32), that is when a draw falls within rounding of the boundary between two
    tokens. Log-probabilities are those of the very logits that were drawn from, under the request's
    distribution; at temperature 0 (greedy) they are those of temperature 1.

    Args:
        model: The causal LM; a peft model is sampled with its adapters.
        decode: Text of token ids, for stop strings.
        cache_bytes: Most memory for keys and values.
        max_rows: Most requests that decode together.
        decoder: Makes the model's decoder; the default takes a fast one where there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        decode: Decode,
        *,
        cache_bytes: int = 2 << 30,
        max_rows: int = 512,
        decoder: Callable[[PreTrainedModel], Decoder] = choose_decoder,
    ) -> None:
        if max_rows < 1:
            raise UserError(f"max_rows={max_rows} leaves no row to decode; give at least 1.")
        self.cache_bytes = cache_bytes
        self.max_rows = max_rows
        self.version = 0
        self._recorder: Recorder | None = None
        self.work = Work()
        self._decode = decode
        self._make_decoder = decoder
        self._use(model)

    def _use(self, model: nn.Module) -> None:
        self._model = model
        self._language_model = language_model_of(model)
        self._limit = _position_limit(self._language_model)
        with _evaluating(model):
            self._decoder = self._make_decoder(self._language_model)

    def sync(self, policy: Policy) -> None:
        """Sample from the policy's own module from now on, under its version."""
        if policy.model is not self._model:
            self._use(policy.model)
        self._decoder.reload()
        self.version = policy.version
        self._recorder = policy.recorder

    def rest(self) -> None:
        """Give back the decoder's copy of the weights until the next sample or sync."""
        self._decoder.rest()

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """The samples of the requests, in their order."""
        vocabulary = len(cast(Tensor, self._language_model.get_input_embeddings().weight))
        for request in requests:
            self._check(request, vocabulary)
        self.work = Work()
        samples: dict[int, Sample] = {}
        tickets = []
        groups: dict[tuple[int, ...], int] = {}
        for index, request in enumerate(requests):
            finish = Ending(request, self._decode).finish()
            if finish is None:
                group = groups.setdefault(request.prompt or request.prefix, len(groups))
                tickets.append(Ticket.of(index, request, group))
            else:
                entropy = () if request.entropy else None
                samples[index] = Sample(request, (), (), finish, self.version, entropy)
        with _evaluating(self._model):
            self._decoder.refresh()
            self._decoder.recorder = recorder = self._wanted_record()
            if recorder is not None:
                recorder.make_room(_most_tokens(requests))
            queue = Queue(self._decoder, self.cache_bytes, self.max_rows, self.work)
            completions = Completions(
                [ticket.request for ticket in tickets], self.max_rows, self._decode, self.version
            )
            batching = Batching(self._decoder, queue, tickets, completions, self.work)
            samples.update(batching.run())
        return [samples[i] for i in range(len(requests))]

    def _wanted_record(self) -> Recorder | None:
        """Where activations are wanted: of the weights that this engine samples with."""
        recorder = self._recorder
        wanted = recorder is not None and recorder.open and recorder.version == self.version
        return recorder if wanted else None

    def _check(self, request: SampleRequest, vocabulary: int) -> None:
        """Refuse what the model can't continue."""
        context = request.prompt + request.prefix
        if not context:
            raise UserError("a request with neither prompt nor prefix: give at least one token.")
        if max(context) >= vocabulary or min(context) < 0:
            bad = next(t for t in context if not 0 <= t < vocabulary)
            raise UserError(
                f"token id {bad} is outside the model's vocabulary of {vocabulary}; is the prompt "
                "tokenized with this model's tokenizer?"
            )
        if len(request.prompt) + request.max_tokens > self._limit:
            raise UserError(
                f"a prompt of {len(request.prompt)} tokens and max_tokens={request.max_tokens} "
                f"pass the model's {self._limit} positions; shorten the prompt or lower max_tokens."
            )


def _most_tokens(requests: Sequence[SampleRequest]) -> int:
    """Tokens that may go through the model: each prompt once, and all completions."""
    prompts = {request.prompt for request in requests}
    return sum(map(len, prompts)) + sum(request.max_tokens for request in requests)


def language_model_of(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model itself, with peft's adapters in place if there are any."""
    unwrap = getattr(model, "get_base_model", None)
    if unwrap is None:
        return model  # type: ignore[return-value]
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError("peft prompt learning can't be sampled here; use LoRA or full weights.")
    base: Any = unwrap()
    return base  # type: ignore[no-any-return]


def _position_limit(model: PreTrainedModel) -> float:
    """Most tokens of a sequence that the model has positions for."""
    config = model.config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", None)
    return float("inf") if limit is None else limit


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no autograd inside; each module's mode comes back after."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
