"""Log-probabilities and entropies of tokens without ever holding [N, T, V].

`log_probs` fuses the LM head with the log-softmax: it works through the tokens in chunks, keeps
two numbers per token for the backward pass, and computes each chunk's logits a second time there.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from polyopt.distribution import Distribution, apply_distribution
from polyopt.errors import UserError
from polyopt.models.head_blocks import Foreseen, Head
from polyopt.models.matrix_products import product
from polyopt.native.library import kernels_for

CHUNK = 512
"""Tokens whose logits exist at one time."""

Scored = tuple[Float[Tensor, " M"], Float[Tensor, " M"] | None]


def log_probs(
    hidden: Float[Tensor, "M H"],
    weight: Float[Tensor, "V H"],
    targets: Int[Tensor, " M"],
    distribution: Distribution,
    *,
    bias: Float[Tensor, " V"] | None = None,
    entropy: bool = False,
    chunk: int = CHUNK,
    foreseen: Foreseen | None = None,
) -> Scored:
    """Log-probability in nats of each target, and the entropy in nats of its distribution.

    `logp_m = z_m[target_m] - logsumexp(z_m)` with `z = (hidden weight^T + bias) / temperature`.
    Cut distributions (top-k, top-p, min-p) keep the target in the set that remains, so `logp` is
    finite also where rounding would have cut a token that was sampled.

    Args:
        hidden: Last hidden states at the positions that predict the targets.
        weight: Weight of the LM head.
        targets: Token ids.
        distribution: What the tokens were sampled from.
        bias: Bias of the LM head.
        entropy: Also return the entropies; else None stands in their place.
        chunk: Most tokens whose logits exist at one time.
        foreseen: What the log-probabilities and their gradient will be, up to rounding, if that is
            known: the backward pass is then made together with this one where that is faster.

    Returns:
        Log-probabilities and entropies, in float32 (float64 for float64 inputs) whatever the
        precision of the inputs.

    Raises:
        UserError: Temperature 0: greedy decoding is not a distribution to train on.
    """
    check_trainable(distribution)
    if distribution.truncated:
        return _cut_log_probs(hidden, weight, targets, distribution, bias, entropy, chunk)
    low = _autocast_dtype(hidden)
    logp, entropies = _LinearLogSoftmax.apply(  # type: ignore[no-untyped-call]
        *(hidden, weight, bias, targets, distribution.temperature, entropy, chunk, low),
        foreseen if torch.is_grad_enabled() and not entropy else None,
    )
    return logp, entropies if entropy else None


def log_probs_from_logits(
    logits: Float[Tensor, "M V"],
    targets: Int[Tensor, " M"],
    distribution: Distribution,
    *,
    entropy: bool = False,
) -> Scored:
    """As `log_probs`, from logits that are already there; the plain way, used as its reference."""
    check_trainable(distribution)
    logits = logits.to(_wide(logits.dtype))
    index = targets[:, None]
    kept = apply_distribution(logits, distribution)
    if distribution.truncated:
        own = logits.gather(-1, index) / distribution.temperature
        kept = kept.scatter(-1, index, own)
    logp_all = kept.log_softmax(-1)
    logp = logp_all.gather(-1, index)[:, 0]
    if not entropy:
        return logp, None
    finite = logp_all.masked_fill(kept == float("-inf"), 0.0)
    return logp, -(logp_all.exp() * finite).sum(-1)


def check_trainable(distribution: Distribution) -> None:
    """Raise UserError unless log-probabilities under `distribution` are defined."""
    if not distribution.temperature > 0:
        raise UserError(
            f"temperature {distribution.temperature} is greedy decoding, which has no "
            "log-probabilities to train on; sample the training rollouts at a temperature above 0."
        )


class _LinearLogSoftmax(torch.autograd.Function):
    """The head and the log-softmax as one differentiable step.

    With `p = softmax(z)`, `d logp / dz = onehot - p` and `d entropy / dz = -p (log p + entropy)`;
    `dz` is carried to hidden, weight and bias chunk by chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        want_entropy: bool,
        chunk: int,
        low: torch.dtype | None,
        foreseen: Foreseen | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.chunk, ctx.low = temperature, chunk, low
        ctx.done = None
        if head := _in_blocks(hidden, weight, bias, targets, temperature, low):
            if foreseen is not None:
                found, logp = head.gradients_and_log_probs(foreseen, ctx.needs_input_grad[:3])
                norm, nothing = head.target_logits() - logp, logp.new_empty(0)
                ctx.done = found, foreseen.gradient
                ctx.save_for_backward(hidden, weight, bias, targets, norm, nothing)
                return logp, nothing
            logp, norm, entropies = head.log_probs(want_entropy)
            ctx.save_for_backward(hidden, weight, bias, targets, norm, entropies)
            return logp, entropies
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = _operand(hidden, low), _operand(weight, low)
            logp = h.new_empty(len(h), dtype=_wide(hidden.dtype))
            norm = torch.empty_like(logp)
            entropies = torch.empty_like(logp) if want_entropy else logp.new_empty(0)
            for start in range(0, len(h), chunk):
                part = slice(start, start + chunk)
                z = _logits(h[part], w, bias, temperature)
                norm[part] = z.logsumexp(-1)
                logp[part] = z.gather(-1, targets[part, None])[:, 0] - norm[part]
                if want_entropy:
                    z -= norm[part, None]
                    entropies[part] = -(z.exp() * z).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, norm, entropies)
        return logp, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> Any:
        hidden, weight, bias, targets, norm, entropies = ctx.saved_tensors
        if ctx.done is not None and grad_entropy is None:
            done, expected = ctx.done
            ctx.done = None
            if grad_logp is not None and torch.equal(grad_logp, expected):
                return *done, None, None, None, None, None, None
        head = _in_blocks(hidden, weight, bias, targets, ctx.temperature, ctx.low)
        if head is not None:
            grads = (_row(grad_logp), _row(grad_entropy))
            found = head.gradients(norm, entropies, *grads, ctx.needs_input_grad[:3])
            return *found, None, None, None, None, None, None
        wide = norm.dtype
        needs_h, needs_w, needs_b = ctx.needs_input_grad[:3]
        grad_h = torch.zeros_like(hidden) if needs_h else None
        grad_w = torch.zeros_like(weight, dtype=wide) if needs_w else None
        grad_b = torch.zeros_like(bias, dtype=wide) if bias is not None and needs_b else None
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = _operand(hidden, ctx.low), _operand(weight, ctx.low)
            for start in range(0, len(h), ctx.chunk):
                part = slice(start, start + ctx.chunk)
                z = _logits(h[part], w, bias, ctx.temperature)
                z -= norm[part, None]
                dz = _logit_gradient(
                    z,
                    targets[part],
                    entropies[part],
                    None if grad_logp is None else grad_logp[part],
                    None if grad_entropy is None else grad_entropy[part],
                )
                dz /= ctx.temperature
                if grad_h is not None:
                    grad_h[part] = _matmul(dz.to(w.dtype), w).to(grad_h.dtype)
                if grad_w is not None:
                    grad_w += _matmul(dz.to(h.dtype).T, h[part])
                if grad_b is not None:
                    grad_b += dz.sum(0)
        grad_w = None if grad_w is None else grad_w.to(weight.dtype)
        grad_b = None if grad_b is None else grad_b.to(bias.dtype)
        return grad_h, grad_w, grad_b, None, None, None, None, None, None


def _in_blocks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    low: torch.dtype | None,
) -> Head | None:
    """The head in the form that the C kernels take, where there are any for it."""
    tensors = (hidden, weight) if bias is None else (hidden, weight, bias)
    kernels = kernels_for(*tensors)
    if kernels is None or low is not None:
        return None
    bias = None if bias is None else bias.detach().contiguous()
    whole = hidden.detach().contiguous(), weight.detach().contiguous(), bias
    return Head(kernels, *whole, targets.contiguous(), temperature)


def _row(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.contiguous()


def _logit_gradient(
    logp: Tensor,
    targets: Tensor,
    entropies: Tensor,
    grad_logp: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """dL/dz [M, V] from all log-probabilities [M, V] and the gradients of the two outputs [M]."""
    probs = logp.exp()
    if grad_entropy is None:
        dz = torch.zeros_like(probs) if grad_logp is None else probs * -grad_logp[:, None]
    else:
        slope = (logp + entropies[:, None]) * grad_entropy[:, None]
        if grad_logp is not None:
            slope += grad_logp[:, None]
        dz = probs * -slope
    if grad_logp is not None:
        dz.scatter_add_(-1, targets[:, None], grad_logp[:, None])
    return dz


def _cut_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    distribution: Distribution,
    bias: Tensor | None,
    entropy: bool,
    chunk: int,
) -> Scored:
    """The route for top-k, top-p and min-p: autograd, with each chunk checkpointed."""
    low = _autocast_dtype(hidden)

    def score(h: Tensor, w: Tensor, b: Tensor | None, ids: Tensor) -> Scored:
        with torch.autocast(h.device.type, enabled=False):
            z = _logits(_operand(h, low), _operand(w, low), b, 1.0)
            return log_probs_from_logits(z, ids, distribution, entropy=entropy)

    parts = [
        checkpoint(
            score,
            hidden[start : start + chunk],
            weight,
            bias,
            targets[start : start + chunk],
            use_reentrant=False,
        )
        for start in range(0, max(len(hidden), 1), chunk)
    ]
    logp = torch.cat([part[0] for part in parts])
    return logp, torch.cat([part[1] for part in parts]) if entropy else None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    z = _matmul(hidden, weight.T)
    if bias is not None:
        z = z + bias
    return z if temperature == 1.0 else z / temperature


def _operand(tensor: Tensor, low: torch.dtype | None) -> Tensor:
    """A factor of the matrix products: 16 bits only where the product can be had in 32."""
    if tensor.is_cuda:
        return tensor if low is None else tensor.to(low)
    return tensor.to(_wide(tensor.dtype))


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with float32 sums and a float32 result (float64 for float64)."""
    if a.dtype != b.dtype:
        common = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(common), b.to(common)
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.dtype not in (torch.float16, torch.bfloat16):
        return a @ b if graph else product(a, b)
    if graph:
        return a.float() @ b.float()
    return torch.mm(a, b, out_dtype=torch.float32)


def _autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
