"""What every engine must do, whatever runs it. A new engine joins by an entry in `ENGINES`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.kinds import ENGINES, Kind
from tests.engines.small_models import VOCABULARY, decode, small_model

from polyopt.distribution import Distribution, apply_distribution
from polyopt.engines.protocol import Engine, Sample, SampleRequest
from polyopt.errors import UserError

DISTRIBUTIONS = (
    Distribution(),
    Distribution(temperature=0.6),
    Distribution(temperature=1.5, top_k=7),
    Distribution(top_p=0.8),
    Distribution(temperature=0.9, top_k=30, top_p=0.9, min_p=0.02),
    Distribution(temperature=0.0),
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[pytest.mark.slow] * k.slow) for n, k in ENGINES.items()],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The engine under test, and what it can't do."""
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def model(kind: Kind) -> Any:
    """The model that the engine samples from."""
    return small_model(kind.architecture)


@pytest.fixture(scope="module")
def make(kind: Kind, model: Any) -> Iterator[Callable[..., Engine]]:
    """Makes the engine under test, with options; what it needs runs meanwhile."""
    with kind.open(model) as maker:
        yield maker


def request(seed: int = 1, **fields: Any) -> SampleRequest:
    """A request with a few defaults."""
    fields = {"prompt": (5, 6, 7), "max_tokens": 12, **fields}
    return SampleRequest(seed=seed, **fields)


def mixed_requests() -> list[SampleRequest]:
    """Groups of unequal sizes, prompts, prefixes, lengths and distributions."""
    return [
        request(
            seed=100 + i,
            prompt=tuple(range(10, 13 + i % 4)),
            prefix=(1, 2, 3)[: i % 3],
            max_tokens=4 + (i * 5) % 17,
            distribution=DISTRIBUTIONS[i % len(DISTRIBUTIONS)],
            stop_ids=frozenset({3, 50}),
            entropy=i % 2 == 0,
        )
        for i in range(18)
    ]


def reference(model: Any, sample: Sample) -> torch.Tensor:
    """Log-probabilities [T, V] of the request's distribution from one plain forward."""
    context = sample.request.prompt + sample.request.prefix
    with torch.no_grad():
        logits = model(torch.tensor([context + sample.tokens])).logits[0]
    logits = logits[len(context) - 1 : len(context) + len(sample.tokens) - 1]
    return apply_distribution(logits, sample.request.distribution).log_softmax(-1)


def same(a: Sample, b: Sample) -> bool:
    """Equal up to floating point."""
    return a.tokens == b.tokens and a.finish == b.finish and np.allclose(a.logp, b.logp, atol=1e-4)


def test_samples_come_in_the_order_of_their_requests(
    kind: Kind, make: Callable[..., Engine]
) -> None:
    requests = kind.able(mixed_requests())
    assert [s.request for s in make(max_rows=4).sample(requests)] == requests


def test_logp_is_that_of_a_plain_forward_under_the_distribution(
    kind: Kind, make: Callable[..., Engine], model: Any
) -> None:
    for sample in make(max_rows=5).sample(kind.able(mixed_requests())):
        expected = reference(model, sample).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert sample.logp == pytest.approx(expected.tolist(), abs=1e-4)


def test_entropy_is_that_of_the_distribution_and_only_on_request(
    kind: Kind, make: Callable[..., Engine], model: Any
) -> None:
    kind.need("entropy")
    for sample in make(max_rows=5).sample(mixed_requests()):
        if not sample.request.entropy:
            assert sample.entropy is None
            continue
        logp = reference(model, sample)
        expected = -torch.where(logp.isfinite(), logp.exp() * logp, 0.0).sum(-1)
        assert sample.entropy == pytest.approx(expected.tolist(), abs=1e-4)


def test_each_token_inverts_the_cumulative_distribution_at_its_own_draw(
    kind: Kind, make: Callable[..., Engine], model: Any
) -> None:
    kind.need("inverse-cdf")
    sample = make().sample([request(seed=9, prefix=(4,), max_tokens=40)])[0]
    draws = np.random.Generator(np.random.Philox(9)).random(40)[1:]
    cumulative = reference(model, sample).double().exp().cumsum(-1)
    for token, draw, sums in zip(sample.tokens, draws, cumulative, strict=True):
        assert sums[token] >= draw - 1e-5
        assert token == 0 or sums[token - 1] <= draw + 1e-5


def test_a_sample_is_the_same_alone_as_among_others(
    kind: Kind, make: Callable[..., Engine]
) -> None:
    requests = kind.able(mixed_requests())
    together = make().sample(requests)
    assert all(same(make().sample([r])[0], s) for r, s in zip(requests, together, strict=True))


@pytest.mark.parametrize("max_rows", [1, 2, 7])
def test_a_sample_depends_neither_on_order_nor_on_the_number_of_rows(
    kind: Kind, make: Callable[..., Engine], max_rows: int
) -> None:
    requests = kind.able(mixed_requests())
    forwards = make().sample(requests)
    backwards = make(max_rows=max_rows).sample(requests[::-1])[::-1]
    assert all(same(a, b) for a, b in zip(forwards, backwards, strict=True))


def test_two_seeds_give_two_samples(make: Callable[..., Engine]) -> None:
    one, two = make().sample([request(seed=1), request(seed=2)])
    assert one.tokens != two.tokens


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:5])
def test_frequencies_match_the_softmax(
    kind: Kind, make: Callable[..., Engine], model: Any, distribution: Distribution
) -> None:
    """A chi-squared test over the tokens that are expected at least 5 times."""
    count = kind.draws
    asks = [request(seed=i, max_tokens=1, distribution=distribution) for i in range(count)]
    samples = make().sample(kind.able(asks))
    counts = np.bincount([s.tokens[0] for s in samples], minlength=VOCABULARY)
    probabilities = reference(model, samples[0])[0].exp().double().numpy()
    assert counts[probabilities == 0].sum() == 0
    often = probabilities * count >= 5
    expected = np.append(probabilities[often], probabilities[~often].sum()) * count
    seen = np.append(counts[often], counts[~often].sum())
    kept = expected > 0
    statistic = float(((seen - expected)[kept] ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_greedy_takes_the_likeliest_token_at_the_logp_of_temperature_1(
    make: Callable[..., Engine], model: Any
) -> None:
    sample = make().sample([request(distribution=Distribution(temperature=0.0))])[0]
    best, tokens = reference(model, sample).max(-1)
    assert sample.tokens == tuple(tokens.tolist())
    assert sample.logp == pytest.approx(best.tolist(), abs=1e-4)


@pytest.mark.parametrize("position", [0, 1, 5, 11])
def test_a_fork_with_the_parents_seed_repeats_its_tail(
    kind: Kind, make: Callable[..., Engine], position: int
) -> None:
    kind.need("positional-draws")
    engine = make()
    parent = engine.sample([request(seed=3)])[0]
    tail = engine.sample([parent.fork(position, seed=3)])[0]
    assert tail.tokens == parent.tokens[position:]
    assert tail.logp == pytest.approx(parent.logp[position:], abs=1e-4)


def test_forks_at_many_positions_of_a_tree_agree_with_forks_alone(
    make: Callable[..., Engine],
) -> None:
    trunk = make().sample([request(seed=3)])[0]
    forks = [trunk.fork(k, seed=100 + k + i) for k in (2, 5, 5, 9) for i in (0, 50)]
    together = make(max_rows=3).sample(forks)
    assert all(same(make().sample([f])[0], s) for f, s in zip(forks, together, strict=True))


def test_a_stop_id_ends_the_completion_and_is_part_of_it(make: Callable[..., Engine]) -> None:
    free = make().sample([request()])[0]
    stop = free.tokens[4]
    stopped = make().sample([request(stop_ids=frozenset({stop}))])[0]
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert stopped.finish == "stop"
    assert free.finish == "length"


def test_a_stop_id_at_the_length_limit_counts_as_a_stop(make: Callable[..., Engine]) -> None:
    free = make().sample([request()])[0]
    stop = free.tokens[4]
    limit = free.tokens.index(stop) + 1
    assert (
        make().sample([request(stop_ids=frozenset({stop}), max_tokens=limit)])[0].finish == "stop"
    )


def test_a_stop_string_ends_at_the_token_that_completes_it(make: Callable[..., Engine]) -> None:
    free = make().sample([request(max_tokens=60)])[0]
    text = decode(free.tokens)
    for begin, end in ((3, 5), (44, 46)):
        stopped = make().sample([request(max_tokens=60, stop_strings=("\0", text[begin:end]))])[0]
        expected = text.index(text[begin:end]) + 2
        assert stopped.tokens == free.tokens[:expected]
        assert stopped.finish == "stop"


def test_a_stop_string_may_begin_in_the_prefix(make: Callable[..., Engine]) -> None:
    trunk = make().sample([request()])[0]
    fork = trunk.fork(4, seed=1)
    free = make().sample([fork])[0]
    stop = decode((trunk.tokens[3], free.tokens[0]))
    assert stop not in decode(trunk.tokens[:4])
    stopped = make().sample([dataclasses.replace(fork, stop_strings=(stop,))])[0]
    assert (stopped.tokens, stopped.finish) == (free.tokens[:1], "stop")


@pytest.mark.parametrize(
    ("fields", "finish"),
    [
        ({"prefix": (8,), "max_tokens": 1}, "length"),
        ({"prefix": (8,), "max_tokens": 1, "stop_ids": frozenset({8})}, "stop"),
        ({"prefix": (9, 8), "stop_ids": frozenset({8})}, "stop"),
        ({"prefix": (9, 8), "stop_strings": (decode((9, 8)),)}, "stop"),
        ({"max_tokens": 0}, "length"),
    ],
)
def test_a_prefix_that_is_over_gives_an_empty_sample(
    kind: Kind, make: Callable[..., Engine], fields: dict[str, Any], finish: str
) -> None:
    asks = kind.able([request(**fields, entropy=True), request()])
    sample = make().sample(asks)[0]
    assert (sample.tokens, sample.logp) == ((), ())
    assert "entropy" in kind.cannot or sample.entropy == ()
    assert sample.finish == finish


def test_max_tokens_counts_the_prefix(make: Callable[..., Engine]) -> None:
    assert len(make().sample([request(prefix=(1, 2, 3), max_tokens=10)])[0].tokens) == 7


def test_no_requests_give_no_samples(make: Callable[..., Engine]) -> None:
    assert make().sample([]) == []


def test_a_prefix_may_stand_alone_without_a_prompt(make: Callable[..., Engine], model: Any) -> None:
    sample = make().sample([request(prompt=(), prefix=(5, 6))])[0]
    expected = reference(model, sample).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert len(sample.tokens) == 10
    assert sample.logp == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ()}, "neither prompt nor prefix"),
        ({"prompt": (5, VOCABULARY)}, "outside the model's vocabulary"),
        ({"max_tokens": 254}, "256 positions"),
    ],
)
def test_what_the_model_cannot_continue_is_refused(
    make: Callable[..., Engine], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make().sample([request(**fields)])


def test_what_an_engine_cannot_do_is_left_out_or_refused(
    kind: Kind, make: Callable[..., Engine]
) -> None:
    if not kind.cannot:
        pytest.skip("this engine can do everything")
    assert make().sample([request(entropy=True)])[0].entropy is None
    with pytest.raises(UserError, match="another order"):
        make().sample([request(distribution=Distribution(top_p=0.9, min_p=0.1))])
