"""The HTTP engine: what it sends, what it reads, what it refuses, how it keeps trying."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.sampling_server import (
    SamplingServer,
    llama_cpp_choice,
    named_ids_choice,
    text_choice,
    vllm_choice,
)
from tests.engines.small_models import decode, small_model, small_policy
from tests.engines.vllm_server import vllm_server

from polyopt.distribution import Distribution
from polyopt.engines.choice import engine_from
from polyopt.engines.http import HttpEngine, vllm_push
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.errors import UserError

ASK = SampleRequest((5, 6, 7), seed=3, max_tokens=8)


@pytest.fixture
def server() -> Iterator[SamplingServer]:
    """A server that speaks vLLM's dialect."""
    with SamplingServer(small_model()) as running:
        yield running


def engine_of(server: SamplingServer, **options: Any) -> HttpEngine:
    """An engine that gives up fast."""
    return HttpEngine(server.url, decode, **{"retries": 2, "pause": 0.001, **options})


@pytest.mark.parametrize("choice", [vllm_choice, named_ids_choice, llama_cpp_choice])
def test_exact_ids_are_read_from_every_known_dialect(
    server: SamplingServer, choice: Callable[[Sample], dict[str, Any]]
) -> None:
    server.choice = choice
    (sample,) = engine_of(server).sample([ASK])
    (expected,) = LocalEngine(small_model(), decode).sample([ASK])
    assert sample.tokens == expected.tokens
    assert sample.logp == pytest.approx(expected.logp, abs=1e-6)


def test_text_without_ids_is_refused_rather_than_tokenized_again(server: SamplingServer) -> None:
    server.choice = text_choice
    with pytest.raises(UserError, match="text without token ids"):
        engine_of(server).sample([ASK])


def test_missing_log_probabilities_are_refused(server: SamplingServer) -> None:
    server.choice = lambda sample: vllm_choice(sample) | {"logprobs": None}
    with pytest.raises(UserError, match="without a log-probability each"):
        engine_of(server).sample([ASK])


def test_prompt_and_prefix_go_out_as_token_ids_with_every_number_of_the_distribution(
    server: SamplingServer,
) -> None:
    asked = SampleRequest(
        (5, 6), 2**63 + 4, 6, prefix=(7,), distribution=Distribution(0.5, 9, 1.0, 0.1)
    )
    engine_of(server).sample([asked])
    body = server.seen[-1][1]
    assert body["prompt"] == [5, 6, 7]
    assert body["max_tokens"] == 5
    assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (0.5, 9, 1.0, 0.1)
    assert (body["seed"], body["model"], body["repetition_penalty"]) == (4, "small", 1.0)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: SamplingServer, status: int) -> None:
    failures = iter([(status, {"error": "busy"})] * 2)
    server.script = lambda path, body: next(failures, None)
    assert len(engine_of(server).sample([ASK])[0].tokens) == 8


def test_a_server_that_stays_busy_is_given_up_with_its_own_words(server: SamplingServer) -> None:
    server.script = lambda path, body: (503, {"error": {"message": "loading the model"}})
    with pytest.raises(UserError, match=r"HTTP 503.*loading the model"):
        engine_of(server).sample([ASK])
    assert len(server.seen) == 3


def test_a_refused_request_is_not_sent_again(server: SamplingServer) -> None:
    asked = SampleRequest((5,), seed=1, max_tokens=300)
    with pytest.raises(UserError, match=r"HTTP 400.*256 positions"):
        engine_of(server).sample([asked])
    assert [path for path, _ in server.seen] == ["/v1/models", "/v1/completions"]


def test_a_server_that_is_down_is_named_with_the_way_out() -> None:
    engine = HttpEngine("http://127.0.0.1:9/v1", decode, retries=1, pause=0.001)
    with pytest.raises(UserError, match=r"127.0.0.1:9 .*2 tries.*start the server"):
        engine.sample([ASK])


def test_an_address_that_is_no_such_server_is_named(server: SamplingServer) -> None:
    server.script = lambda path, body: (200, b"<html>")
    with pytest.raises(UserError, match="answers no JSON"):
        engine_of(server).sample([ASK])
    server.script = lambda path, body: None
    with pytest.raises(UserError, match="Check the path"):
        HttpEngine(f"{server.address}/v2", decode, retries=0).sample([ASK])


def test_an_unknown_model_is_refused_with_those_that_the_server_has(server: SamplingServer) -> None:
    server.names = ["one", "two"]
    with pytest.raises(UserError, match=r"no model 'three'.*one, two"):
        engine_of(server, model="three").sample([ASK])
    with pytest.raises(UserError, match=r"no model is named.*one, two"):
        engine_of(server).sample([ASK])
    assert engine_of(server, model="two").sample([ASK])[0].tokens


def test_log_probabilities_of_another_distribution_are_refused(server: SamplingServer) -> None:
    """A server that reports the plain softmax can't be trained from at another temperature."""
    server.choice = lambda sample: (
        vllm_choice(sample) | {"logprobs": {"token_logprobs": [-1.0] * len(sample.tokens)}}
    )
    warm = SampleRequest((5, 6), seed=1, max_tokens=2, distribution=Distribution(0.7))
    with pytest.raises(UserError, match="processed_logprobs"):
        engine_of(server).sample([warm])
    assert engine_of(server).sample([ASK, SampleRequest((5,), 1, 2)])


def test_an_end_that_nobody_asked_for_is_an_error(server: SamplingServer) -> None:
    server.choice = lambda sample: vllm_choice(sample) | {"finish_reason": "stop"}
    assert engine_of(server).sample([ASK])[0].finish == "length"

    def short(sample: Sample) -> dict[str, Any]:
        answer = {"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}
        return vllm_choice(sample) | answer | {"finish_reason": reason}

    server.choice = short
    reason = "stop"
    with pytest.raises(UserError, match="stopped at token 1, which is no stop id"):
        engine_of(server).sample([ASK])
    reason = "length"
    with pytest.raises(UserError, match="1 of 8 tokens"):
        engine_of(server).sample([ASK])


def test_without_push_samples_keep_the_version_of_the_first_sync(server: SamplingServer) -> None:
    engine, policy = engine_of(server), small_policy("llama")
    policy.version = 4
    engine.sync(policy)
    policy.version = 5
    engine.sync(policy)
    assert engine.sample([ASK])[0].version == 4


def test_with_push_the_server_is_told_where_the_new_weights_lie(server: SamplingServer) -> None:
    told: list[dict[str, Any]] = []

    def load(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        if path != "/load":
            return None
        assert (Path(body["path"]) / "model.safetensors").is_file()
        told.append(body)
        return 200, b""

    server.script = load
    policy = small_policy("llama")
    engine = engine_from(f"{server.address}?sync=/load&retries=0#small", policy)
    engine.sync(policy)
    policy.version = 1
    engine.sync(policy)
    assert [body["version"] for body in told] == [0, 1]
    assert not Path(told[0]["path"]).exists()
    assert engine.sample([ASK])[0].version == 1


def test_vllm_is_told_to_reload_and_to_forget_its_cached_prefixes(
    server: SamplingServer, tmp_path: Path
) -> None:
    server.script = lambda path, body: (200, {}) if "/v1" not in path else None
    vllm_push(server.address)(tmp_path, 1)
    load = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert server.seen == [("/collective_rpc", load), ("/reset_prefix_cache", {})]


def gap_of(server_model: Any, policy: Any, **numbers: Any) -> float:
    """`sampler_gap` of one training step that samples from another model."""
    from tests.tiny import TINY_NUMBERS, tiny_task

    from polyopt.ideas import build
    from polyopt.trainer import Trainer

    with SamplingServer(server_model) as server:
        engine = HttpEngine(server.url, policy.decode)
        recipe = build("grpo+tis", TINY_NUMBERS | numbers)
        result = Trainer(policy, tiny_task(), recipe, steps=1, engine=engine).step()
    return result.metrics["sampler_gap"]


def test_the_sampler_gap_shows_whether_the_server_has_the_policys_weights() -> None:
    from tests.tiny import tiny_policy

    same, other = tiny_policy(), tiny_policy(seed=1, scale=0.5)
    assert gap_of(tiny_policy().model, same) < 1e-4
    assert gap_of(other.model, tiny_policy()) > 0.05


def test_ideas_that_read_the_samplers_entropy_get_the_trainers_or_say_that_they_cannot() -> None:
    from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

    from polyopt.ideas import build
    from polyopt.trainer import Trainer

    def step(expression: str) -> Any:
        policy = tiny_policy()
        with SamplingServer(policy.model) as server:
            engine = HttpEngine(server.url, policy.decode)
            recipe = build(expression, TINY_NUMBERS)
            return Trainer(policy, tiny_task(), recipe, steps=1, engine=engine).step()

    trained = step("rl-zvp").trained
    assert ((trained["entropy"] > 0) == trained.mask).all()
    with pytest.raises(UserError, match="only the local engine"):
        step("ear-etmr")


def test_the_command_line_trains_and_evaluates_through_a_server(
    model_folder: Path,
    data_file: Path,
    reward_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.tiny import tiny_policy

    from polyopt.cli import main

    common = ["--model", str(model_folder), "--task", str(data_file), "--heldout-size", "2"]
    common += ["--reward", f"{reward_file}:letter", "--max-tokens", "4"]
    common += ["--chat-template", "none"]
    run = tmp_path / "run"
    with SamplingServer(tiny_policy().model) as server:
        engine = ["--engine", f"{server.url}?retries=0#small"]
        sizes = ["--steps", "1", "--prompts", "2", "--rollouts", "4", "--run", str(run)]
        assert main(["train", "grpo+tis", *common, *engine, *sizes, "--quiet"]) == 0
        asked = len(server.seen)
        assert main(["eval", *common, *engine, "--json"]) == 0
        assert asked > 8
        assert len(server.seen) > asked
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prompts"] == 2
    arguments = json.loads((run / "run.json").read_text())["arguments"]
    assert arguments["engine"].endswith("#small")


@pytest.mark.slow
def test_a_real_vllm_server_takes_over_new_weights() -> None:
    policy, moved = small_policy(), small_policy(seed=1)
    asks = [SampleRequest((5, 6, 7), seed=i, max_tokens=12) for i in range(8)]
    with vllm_server(policy) as url:
        engine = engine_from(url.removesuffix("/v1") + "?sync=vllm", policy)
        engine.sync(policy)
        before = engine.sample(asks)
        moved.version = 1
        engine.sync(moved)
        after = engine.sample(asks)
    assert [s.version for s in after] == [1] * 8
    for model, samples in ((policy.model, before), (moved.model, after)):
        for sample in samples:
            logits = model(torch.tensor([[5, 6, 7, *sample.tokens]])).logits[0, 2:-1]
            logp = logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
            assert sample.logp == pytest.approx(logp.tolist(), abs=1e-4)
