from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from polyopt.batch import Prompt
from polyopt.errors import UserError
from polyopt.models.policy import Policy
from polyopt.models.prompt_text import encode_prompt, stop_ids_of

CHAT = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['role'] }}:{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|user|>{% endif %}"
)
ASK = Prompt("p", ({"role": "user", "content": "hi"},))
Maker = Callable[..., Any]


def show(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def test_a_template_that_begins_with_bos_gives_one_bos(tokenizer_of: Maker) -> None:
    tokenizer = tokenizer_of(bos=True)
    tokenizer.chat_template = CHAT
    ids = encode_prompt(tokenizer, ASK)
    assert show(tokenizer, ids) == "<s><|user|>user:hi<|end|><|user|>"
    assert ids.count(1) == 1


def test_text_that_was_rendered_with_bos_keeps_one(tokenizer_of: Maker) -> None:
    tokenizer = tokenizer_of(bos=True)
    assert show(tokenizer, encode_prompt(tokenizer, Prompt("p", "<s>x"))) == "<s>x"
    assert show(tokenizer, encode_prompt(tokenizer, Prompt("p", "x"))) == "<s>x"


@pytest.mark.parametrize("eos", [False, True])
def test_plain_text_gets_the_tokenizers_bos_and_no_eos(tokenizer_of: Maker, eos: bool) -> None:
    tokenizer = tokenizer_of(bos=True, eos=eos)
    assert show(tokenizer, encode_prompt(tokenizer, Prompt("p", "ab"))) == "<s>ab"
    without = tokenizer_of(bos=False, eos=eos)
    assert show(without, encode_prompt(without, Prompt("p", "ab"))) == "ab"


def test_addition_and_system_message_go_where_they_belong(tokenizer_of: Maker) -> None:
    tokenizer = tokenizer_of()
    tokenizer.chat_template = CHAT
    turns = Prompt(
        "p",
        (
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ),
    )
    text = show(tokenizer, encode_prompt(tokenizer, turns, addition="+", system="S"))
    assert text.startswith("<s><|user|>system:S<|end|><|user|>user:a<|end|>")
    assert "user:c+<|end|>" in text
    assert "assistant:d<|end|>" in text
    own = Prompt("p", ({"role": "system", "content": "T"}, {"role": "user", "content": "a"}))
    assert "system:S\n\nT<|end|>" in show(tokenizer, encode_prompt(tokenizer, own, system="S"))
    assert turns.messages[2]["content"] == "c"  # type: ignore[index]
    plain = encode_prompt(tokenizer, Prompt("p", "q"), addition="+", system="S")
    assert show(tokenizer, plain) == "<s>S\n\nq+"


def test_chat_without_a_template_names_model_and_way_out(policy_of: Callable[..., Policy]) -> None:
    policy = policy_of(name="base-model")
    with pytest.raises(UserError, match=r"base-model has no chat template.*plain string"):
        policy.encode(ASK)
    policy = policy_of(chat_template="none")
    assert policy.decode(policy.encode(ASK, "!"), False) == "<s>hi!"


def test_a_template_file_replaces_the_tokenizers(
    policy_of: Callable[..., Policy], tmp_path: Any
) -> None:
    (tmp_path / "t.jinja").write_text("Q: {{ messages[0]['content'] }} A:")
    policy = policy_of(chat_template=str(tmp_path / "t.jinja"))
    assert policy.decode(policy.encode(ASK)) == "Q: hi A:"
    with pytest.raises(UserError, match="no such file"):
        policy_of(chat_template=str(tmp_path / "missing.jinja"))


def test_messages_that_the_template_rejects_are_a_user_error(tokenizer_of: Maker) -> None:
    tokenizer = tokenizer_of()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match=r"rejects messages with roles system, user.*not supported"):
        encode_prompt(tokenizer, ASK, system="S")


def test_an_empty_prompt_starts_from_bos(tokenizer_of: Maker) -> None:
    assert encode_prompt(tokenizer_of(bos=False), Prompt("p", "")) == (1,)


def test_padding_is_a_stop_id_only_if_it_ends_texts(tokenizer_of: Maker) -> None:
    def model(eos: object) -> Any:
        return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=eos))

    assert stop_ids_of(model(2), tokenizer_of()) == {2}
    assert stop_ids_of(model([4, 3]), tokenizer_of()) == {2, 3, 4}
    assert stop_ids_of(model(None), tokenizer_of(pad="</s>")) == {2}
    assert stop_ids_of(SimpleNamespace(), tokenizer_of()) == {2}
