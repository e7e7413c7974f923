"""Decoding in C against the model's own forward: odd shapes, pages, threads, processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.engines.small_models import SIZES, decode, model_of
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from polyopt.distribution import Distribution
from polyopt.engines.decoder import Prefill, RowShape, Segment
from polyopt.engines.generic_decoder import GenericDecoder
from polyopt.engines.local import LocalEngine
from polyopt.engines.native_decoder import NativeDecoder
from polyopt.engines.protocol import SampleRequest
from polyopt.models.llama_like import why_not_native
from polyopt.native.library import native

pytestmark = pytest.mark.skipif(native() is None, reason="no C compiler here")

GREEDY = Distribution(temperature=0.0)
"""Its samples don't hang on a draw near the boundary between two tokens."""

SHAPES: dict[str, Any] = {
    "dim-8-share-8": (LlamaConfig, {"num_attention_heads": 8, "num_key_value_heads": 1}, 8),
    "dim-64-share-3": (LlamaConfig, {"num_attention_heads": 9, "num_key_value_heads": 3}, 64),
    "dim-80-share-1": (LlamaConfig, {"num_attention_heads": 2, "num_key_value_heads": 2}, 80),
    "dim-6-share-2": (LlamaConfig, {"num_attention_heads": 4, "num_key_value_heads": 2}, 6),
    "dim-96-share-5": (Qwen2Config, {"num_attention_heads": 5, "num_key_value_heads": 1}, 96),
    "dim-128-share-4": (Qwen3Config, {"num_attention_heads": 4, "num_key_value_heads": 1}, 128),
    "dim-16-share-7": (Qwen3Config, {"num_attention_heads": 7, "num_key_value_heads": 1}, 16),
}
ODD = {"intermediate_size": 70, "vocab_size": 101}


def shaped(name: str) -> Any:
    """A random model of one of the shapes, with sizes that fill no vector or panel."""
    kind, heads, dim = SHAPES[name]
    sizes = {**SIZES, **ODD, **heads, "hidden_size": 7 * heads["num_attention_heads"]}
    return model_of(kind(**sizes | {"head_dim": dim, "initializer_range": 0.15}))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    """Random token ids."""
    noise = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, 90, (count,), generator=noise).tolist())


def placed(decoder: Any, lengths: list[tuple[int, int]]) -> list[Segment]:
    """Rows of these lengths of prompt and prefix; rows with one length of prompt share it."""
    decoder.refresh()
    prompts = {p: decoder.prefill([Prefill(tokens_of(p, p))])[0] for p, _ in lengths}
    shapes = [RowShape(p, c + 40, p) for p, c in lengths]
    decoder.reserve(shapes, 1 << 30)
    segments = []
    for row, (prompt, prefix) in enumerate(lengths):
        segment = prompts[prompt]
        if prefix:
            job = Prefill(tokens_of(1000 + prefix, prefix), segment)
            segment = decoder.prefill([job])[0]
        decoder.place(row, segment, 99)
        segments.append(segment)
    return segments


CLOSE = {"atol": 1e-4, "rtol": 1e-4}
LENGTHS = [(1, 0), (40, 3), (40, 0), (31, 31), (32, 32), (33, 33), (40, 70), (1, 64), (100, 1)]


@pytest.mark.parametrize("name", SHAPES)
def test_steps_of_odd_shapes_agree_with_the_models_forward(name: str) -> None:
    model = shaped(name)
    with torch.no_grad():
        exact, fast = GenericDecoder(model), NativeDecoder(model)
        for decoder in (exact, fast):
            placed(decoder, LENGTHS)
        for step in range(36):
            tokens = tokens_of(step, len(LENGTHS))
            expected = exact.step(tokens).log_softmax(-1)
            torch.testing.assert_close(fast.step(tokens).log_softmax(-1), expected, **CLOSE)


def test_rows_that_move_and_come_and_go_keep_their_sequences() -> None:
    model = shaped("dim-64-share-3")
    with torch.no_grad():
        exact, fast = GenericDecoder(model), NativeDecoder(model)
        for decoder in (exact, fast):
            segments = placed(decoder, LENGTHS)
            decoder.release(2)
            decoder.move(8, 2)
            decoder.shrink(8)
            decoder.step(tokens_of(1, 8))
            decoder.release(4)
            decoder.place(4, segments[6], 99)
            decoder.reserve([RowShape(100, 110, row) for row in range(20)], 1 << 30)
            decoder.place(8, segments[0], 99)
        for step in range(4):
            tokens = tokens_of(step, 9)
            expected = exact.step(tokens).log_softmax(-1)
            torch.testing.assert_close(fast.step(tokens).log_softmax(-1), expected, **CLOSE)


def test_pages_are_given_back() -> None:
    decoder = NativeDecoder(shaped("dim-8-share-8"))
    placed(decoder, LENGTHS)
    assert decoder._cache.pages.used > 0
    assert decoder.reserved_bytes == decoder.row_bytes([RowShape(p, c + 40, p) for p, c in LENGTHS])
    decoder.shrink(0)
    assert decoder._cache.pages.used == 0
    assert decoder.reserved_bytes == 0


def test_too_much_room_is_given_up() -> None:
    decoder = NativeDecoder(shaped("dim-8-share-8"))
    decoder.reserve([RowShape(200, 200, 0)] * 10, 1 << 30)
    few = [RowShape(10, 10, 0)]
    decoder.reserve(few, 1 << 30)
    assert decoder.reserved_bytes > decoder.row_bytes(few)
    decoder.reserve(few, decoder.row_bytes(few))
    assert decoder.reserved_bytes == decoder.row_bytes(few)


def run_steps(decoder: Any) -> list[torch.Tensor]:
    """Logits of a few steps."""
    placed(decoder, LENGTHS)
    return [decoder.step(tokens_of(step, len(LENGTHS))).clone() for step in range(3)]


def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    model = shaped("dim-64-share-3")
    decoder = NativeDecoder(model)
    many = run_steps(decoder)
    decoder.shrink(0)
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(run_steps(decoder), many, strict=True))


def test_a_row_is_the_same_alone_as_among_others() -> None:
    decoder = NativeDecoder(shaped("dim-64-share-3"))
    together = run_steps(decoder)
    decoder.shrink(0)
    placed(decoder, LENGTHS[1:2])
    for step, logits in enumerate(together):
        token = tokens_of(step, len(LENGTHS))[1:2]
        torch.testing.assert_close(decoder.step(token)[0], logits[1], rtol=1e-6, atol=1e-5)


def test_hundreds_of_rows_decode_together(threads: int) -> None:
    model = shaped("dim-8-share-8")
    requests = [
        SampleRequest(tokens_of(i // 20, 5 + i // 20), i, 3 + i % 30, distribution=GREEDY)
        for i in range(300)
    ]
    engine = LocalEngine(model, decode)
    samples = engine.sample(requests)
    assert engine.work.most_rows == 300
    few = LocalEngine(model, decode, decoder=GenericDecoder).sample(requests[::20])
    for sample, other in zip(samples[::20], few, strict=True):
        assert sample.tokens == other.tokens
        assert sample.logp == pytest.approx(other.logp, abs=1e-4)


def test_what_the_kernels_cannot_run_is_left_to_other_decoders() -> None:
    model = shaped("dim-8-share-8")
    assert why_not_native(model) is None
    assert "bfloat16" in str(why_not_native(model.to(torch.bfloat16)))


def test_requests_of_a_prefix_fork_from_it() -> None:
    engine = LocalEngine(shaped("dim-96-share-5"), decode)
    trunk = engine.sample([SampleRequest((4, 5), 0, 80, distribution=GREEDY)])[0]
    forks = [trunk.fork(position, seed=0) for position in (1, 31, 32, 33, 64, 79)]
    for fork, sample in zip(forks, engine.sample(forks), strict=True):
        assert sample.tokens == trunk.tokens[len(fork.prefix) :]
        again = engine.sample([fork])[0]
        assert again.logp == pytest.approx(sample.logp, abs=1e-4)
