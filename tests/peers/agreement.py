"""The yardstick: largest error, and the table of it that a run of these tests ends with."""

from __future__ import annotations

from torch import Tensor

from tests.peers.accumulation import LossAndGradient

TOLERANCE = 1e-6

ERRORS: dict[tuple[str, str, str], float] = {}
"""Largest error seen, by peer, method and quantity."""


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference: of a scalar itself, of a tensor as a share of its largest value."""
    assert ours.shape == theirs.shape
    scale = 1.0 if theirs.dim() == 0 else float(theirs.abs().max())
    assert scale > 0, "nothing is compared"
    return float((ours - theirs).abs().max()) / scale


def same(peer: str, method: str, quantity: str, ours: Tensor, theirs: Tensor) -> None:
    """Assert that two tensors agree to 1e-6, and remember the error."""
    found = error(ours, theirs)
    key = (peer, method, quantity)
    ERRORS[key] = max(found, ERRORS.get(key, 0.0))
    assert found <= TOLERANCE, f"{method} {quantity} differs from {peer} by {found:.2e}"


def same_loss(peer: str, method: str, ours: LossAndGradient, theirs: LossAndGradient) -> None:
    """Assert that losses and gradients agree."""
    same(peer, method, "loss", ours.loss, theirs.loss)
    same(peer, method, "gradient", ours.gradient, theirs.gradient)


def lines() -> list[str]:
    """The table, one line per peer, method and quantity."""
    return [f"{p:5} {m:32} {q:10} {e:.1e}" for (p, m, q), e in sorted(ERRORS.items())]
