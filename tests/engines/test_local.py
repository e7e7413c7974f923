"""The local engine's own promises: memory, work, weights, architectures."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.engines.small_models import ARCHITECTURES, FAST, decode, small_model
from tests.engines.test_conformance import mixed_requests, reference, request, same
from torch import nn

from polyopt.distribution import Distribution
from polyopt.engines.fast_decoder import FastDecoder
from polyopt.engines.generic_decoder import GenericDecoder
from polyopt.engines.local import LocalEngine, choose_decoder
from polyopt.engines.native_decoder import NativeDecoder
from polyopt.engines.protocol import Sample
from polyopt.errors import UserError
from polyopt.native.library import native

needs_kernels = pytest.mark.skipif(native() is None, reason="no C compiler here")
FAST_DECODERS = (FastDecoder, pytest.param(NativeDecoder, marks=needs_kernels))
DECODERS = (GenericDecoder, *FAST_DECODERS)


def engine(model: nn.Module, decoder: Any = choose_decoder, **options: Any) -> LocalEngine:
    """An engine with the test's text."""
    return LocalEngine(model, decode, decoder=decoder, **options)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_samples_what_its_plain_forward_says(architecture: str) -> None:
    model = small_model(architecture)
    for sample in engine(model, max_rows=5).sample(mixed_requests()):
        logp = reference(model, sample)
        expected = logp.gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert sample.logp == pytest.approx(expected.tolist(), abs=1e-4)
        if sample.request.distribution.temperature == 0.0:
            assert sample.tokens == tuple(logp.argmax(-1).tolist())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_fast_decoder_is_taken_where_it_can_be(architecture: str) -> None:
    fast = FastDecoder if native() is None else NativeDecoder
    kind = fast if architecture in FAST else GenericDecoder
    assert isinstance(choose_decoder(small_model(architecture)), kind)


@pytest.mark.parametrize("decoder", FAST_DECODERS)
@pytest.mark.parametrize("architecture", sorted(FAST))
def test_fast_and_generic_decoding_agree(architecture: str, decoder: Any) -> None:
    model = small_model(architecture)
    fast = engine(model, decoder, max_rows=4).sample(mixed_requests())
    generic = engine(model, GenericDecoder, max_rows=4).sample(mixed_requests())
    assert all(same(a, b) for a, b in zip(fast, generic, strict=True))


def test_the_fast_decoder_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match="sliding-window"):
        FastDecoder(small_model("mistral-sliding"))


def test_models_whose_state_cannot_be_forked_are_refused() -> None:
    model = copy.deepcopy(small_model())
    model.config = copy.deepcopy(model.config)
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UserError, match="linear_attention"):
        GenericDecoder(model)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_prompt_is_computed_once_for_its_group(decoder: Any) -> None:
    sampler = engine(small_model(), decoder)
    sampler.sample([request(seed=i, prompt=tuple(range(20))) for i in range(6)])
    assert sampler.work.prefilled_tokens == 20


@pytest.mark.parametrize("decoder", DECODERS)
def test_forks_compute_only_what_no_other_fork_holds(decoder: Any) -> None:
    prompt, trunk = tuple(range(20)), (1, 2, 3, 4, 5, 6)
    forks = [request(seed=i, prompt=prompt, prefix=trunk[:k]) for k in (0, 2, 6) for i in range(2)]
    sampler = engine(small_model(), decoder)
    sampler.sample(forks)
    assert sampler.work.prefilled_tokens == 20 + 6


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_finished_rows_place_is_taken_at_once(decoder: Any) -> None:
    """Two rows, one long request beside many short ones: no step of the long one is extra."""
    sampler = engine(small_model(), decoder, max_rows=2)
    requests = [request(max_tokens=41), *(request(seed=i, max_tokens=5) for i in range(10))]
    sampler.sample(requests)
    assert sampler.work.steps == 40
    assert sampler.work.decoded_tokens == 40 + 10 * 4
    assert sampler.work.most_rows == 2


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_cache_budget_is_kept_and_changes_no_sample(decoder: Any) -> None:
    model = small_model()
    roomy, requests = engine(model, decoder), mixed_requests()
    expected = roomy.sample(requests)
    budget = roomy.work.most_cache_bytes // 4
    tight = engine(model, decoder, cache_bytes=budget)
    samples = tight.sample(requests)
    assert all(same(a, b) for a, b in zip(samples, expected, strict=True))
    assert 0 < tight.work.most_cache_bytes <= budget
    assert tight.work.most_rows < roomy.work.most_rows


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_request_that_never_fits_is_refused_with_the_remedy(decoder: Any) -> None:
    with pytest.raises(UserError, match="raise cache_bytes"):
        engine(small_model(), decoder, cache_bytes=10_000).sample([request(max_tokens=200)])


def test_of_several_requests_the_first_that_never_fits_is_named() -> None:
    requests = [request(max_tokens=most) for most in (5, 5, 190, 200)]
    with pytest.raises(UserError, match="max_tokens=190 "):
        engine(small_model(), GenericDecoder, cache_bytes=50_000).sample(requests)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_cache_is_given_back_after_the_call(decoder: Any) -> None:
    sampler = engine(small_model(), decoder)
    sampler.sample([request()])
    assert sampler._decoder.reserved_bytes == 0


@pytest.mark.parametrize("decoder", DECODERS)
def test_weights_that_changed_in_place_are_sampled_from(decoder: Any) -> None:
    model = small_model()
    sampler = engine(model, decoder)
    before = sampler.sample([request()])[0]
    model.load_state_dict(small_model(seed=1).state_dict())
    after = sampler.sample([request()])[0]
    assert after.tokens != before.tokens
    assert same(after, engine(small_model(seed=1), decoder).sample([request()])[0])


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_rested_engine_samples_as_before(decoder: Any) -> None:
    sampler = engine(small_model(), decoder)
    before = sampler.sample([request()])[0]
    sampler.rest()
    sampler.rest()
    assert sampler.sample([request()])[0] == before


@pytest.mark.parametrize("decoder", DECODERS)
def test_modes_and_gradients_are_left_as_they_were(decoder: Any) -> None:
    model = small_model()
    model.train()
    model.lm_head.eval()
    before = {name: module.training for name, module in model.named_modules()}
    engine(model, decoder).sample([request()])
    assert {name: module.training for name, module in model.named_modules()} == before
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()


@pytest.mark.parametrize("decoder", DECODERS)
def test_lora_adapters_are_sampled_with(decoder: Any) -> None:
    peft = pytest.importorskip("peft")
    base = small_model()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    model = peft.get_peft_model(copy.deepcopy(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, 0.0, 0.3)
    sampler = engine(model, decoder)
    adapted = sampler.sample([request()])[0]
    expected = reference(model, adapted).gather(-1, torch.tensor(adapted.tokens)[:, None])[:, 0]
    assert adapted.logp == pytest.approx(expected.tolist(), abs=1e-4)
    with model.disable_adapter():
        plain = sampler.sample([request()])[0]
    assert same(plain, engine(base, decoder).sample([request()])[0])
    assert plain.tokens != adapted.tokens


def test_weights_that_diverged_are_an_error() -> None:
    model = small_model()
    nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(FloatingPointError, match="diverged"):
        engine(model).sample([request()])


def test_bfloat16_models_sample_with_the_logp_of_their_own_logits() -> None:
    model = small_model().to(torch.bfloat16)
    sample: Sample = engine(model).sample([request(distribution=Distribution(0.8))])[0]
    expected = reference(model, sample).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert sample.logp == pytest.approx(expected.tolist(), abs=0.3)
