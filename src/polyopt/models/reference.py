"""The reference policy: the weights as they were when it was prepared, in the cheapest form."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from polyopt.models.scoring import Scorer


class Reference(Protocol):
    """A frozen policy to which the trained one is compared."""

    @contextmanager
    def active(self) -> Iterator[Scorer]:
        """Inside the context the scorer scores under the reference.

        On leaving it, also by an exception, the trained policy is as it was.
        """


def prepare_reference(scorer: Scorer, weights: Mapping[str, Tensor] | None = None) -> Reference:
    """The reference that equals the policy's present weights, or has given ones.

    Full fine-tuning copies the model. With LoRA nothing is copied while the adapter does nothing
    yet (disabling it gives the same policy); an adapter that was already trained is copied, since
    without it the reference would be another policy than the one that training starts from.
    """
    if weights is not None:
        reference = FrozenCopy(scorer)
        reference.scorer.model.load_state_dict(weights)
        return reference
    if not hasattr(scorer.model, "peft_config"):
        return FrozenCopy(scorer)
    return AdapterDisabled(scorer) if adapter_is_fresh(scorer.model) else AdapterCopy(scorer)


def adapter_is_fresh(model: Any) -> bool:
    """Whether the adapter changes nothing: every LoRA product is zero and no layer was replaced."""
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name or "trainable_tokens" in name:
            return False
        if ("lora_B" in name or "lora_embedding_B" in name) and bool(parameter.any()):
            return False
    return True


class FrozenCopy:
    """A frozen copy of the whole model."""

    def __init__(self, scorer: Scorer) -> None:
        frozen = copy.deepcopy(scorer.model).requires_grad_(False).eval()
        for parameter in frozen.parameters():
            parameter.grad = None
        self.scorer = Scorer(frozen, share_prefix=scorer.share_prefix)

    @contextmanager
    def active(self) -> Iterator[Scorer]:
        """The copy's scorer."""
        yield self.scorer


class AdapterDisabled:
    """The base model under an adapter that began at zero."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    @contextmanager
    def active(self) -> Iterator[Scorer]:
        """The policy's scorer with the adapter switched off."""
        trained = [p for p in self.scorer.model.parameters() if p.requires_grad]
        frozen = [p for p in self.scorer.model.parameters() if not p.requires_grad]
        try:
            with self.scorer.model.disable_adapter():
                yield self.scorer
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)
            for parameter in frozen:
                parameter.requires_grad_(False)


class AdapterCopy:
    """A frozen copy of the adapter's weights, put in their place for the length of a pass."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, parameter in scorer.model.named_parameters()
            if parameter.requires_grad
        }

    @contextmanager
    def active(self) -> Iterator[Scorer]:
        """The policy's scorer with the copied weights in place."""
        parameters = dict(self.scorer.model.named_parameters())
        trained = {name: parameters[name].data for name in self.weights}
        try:
            for name, weight in self.weights.items():
                parameters[name].data = weight
            yield self.scorer
        finally:
            for name, weight in trained.items():
                parameters[name].data = weight
