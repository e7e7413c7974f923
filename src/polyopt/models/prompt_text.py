"""From a prompt to token ids (chat template, one BOS, no EOS); which ids end a completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyopt.batch import Prompt
from polyopt.errors import UserError

Messages = list[dict[str, str]]


def encode_prompt(
    tokenizer: Any,
    prompt: Prompt,
    *,
    addition: str = "",
    system: str | None = None,
    chat: bool = True,
    name: str = "the model",
) -> tuple[int, ...]:
    """Token ids of a prompt as the model is to see it.

    Args:
        tokenizer: A Hugging Face tokenizer.
        prompt: Chat messages or plain text.
        addition: Text put at the end of the last user message (or of the text).
        system: A system message put first (or text put before the text).
        chat: Use the chat template for chat messages; else their contents are joined to text.
        name: The model's name, for messages.

    Raises:
        UserError: Chat messages without a chat template, messages that the template rejects, or a
            prompt of no tokens.
    """
    if isinstance(prompt.messages, str) or not chat:
        text = prompt.text + addition
        ids = _encode_text(tokenizer, text if system is None else f"{system}\n\n{text}")
    else:
        messages = _with_system(_with_addition(prompt.messages, addition), system)
        ids = _encode_text(tokenizer, _render(tokenizer, messages, name), special=False)
    if not ids:
        ids = [i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None][:1]
    if not ids:
        raise UserError(
            f"prompt {prompt.id!r} has no tokens and the tokenizer of {name} has no BOS token to "
            "start from; give a prompt with text."
        )
    return tuple(ids)


def use_chat_template(tokenizer: Any, chat_template: str) -> bool:
    """Set the tokenizer up for "auto", "none" or the path of a template; whether chat is used.

    Raises:
        UserError: No such file.
    """
    if chat_template in ("auto", "none"):
        return chat_template == "auto"
    path = Path(chat_template).expanduser()
    if not path.is_file():
        raise UserError(
            f"chat_template={chat_template!r}: no such file; give the path of a Jinja template, "
            '"auto" (the tokenizer\'s own) or "none" (plain text).'
        )
    tokenizer.chat_template = path.read_text(encoding="utf-8")
    return True


def stop_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a completion: those of the generation config, and the tokenizer's EOS.

    Padding is no stop id, unless it is one of these as well.
    """
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids = set(named) if isinstance(named, list | tuple) else {named}
    return frozenset(int(i) for i in {*ids, tokenizer.eos_token_id} if i is not None)


def _encode_text(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    """Ids of a text; with `special`, what the tokenizer puts before it, but nothing after it."""
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not special or not tokenizer.num_special_tokens_to_add(pair=False):
        return plain
    full = list(tokenizer(text, add_special_tokens=True)["input_ids"])
    if len(full) > len(plain):
        starts = range(len(full) - len(plain) + 1)
        at = next((i for i in starts if full[i : i + len(plain)] == plain), None)
        full = full if at is None else full[: at + len(plain)]
    bos = tokenizer.bos_token_id
    twice = bos is not None and len(plain) > 0 and plain[0] == bos and full[:2] == [bos, bos]
    return full[1:] if twice and full != plain else full


def _render(tokenizer: Any, messages: Messages, name: str) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{name} has no chat template, and the prompt is chat messages; give plain string "
            'prompts, load the model with chat_template="none" (the messages\' contents as plain '
            'text) or chat_template="PATH.jinja", or set tokenizer.chat_template.'
        )
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        roles = ", ".join(message.get("role", "?") for message in messages)
        raise UserError(
            f"the chat template of {name} rejects messages with roles {roles}: {error}; change "
            "the messages (some templates take no system message) or give another template."
        ) from error
    return str(text)


def _with_addition(messages: Sequence[Mapping[str, str]], addition: str) -> Messages:
    changed = [dict(message) for message in messages]
    if addition and changed:
        users = [i for i, message in enumerate(changed) if message.get("role") == "user"]
        last = changed[users[-1] if users else -1]
        last["content"] = last.get("content", "") + addition
    return changed


def _with_system(messages: Messages, system: str | None) -> Messages:
    if system is None:
        return messages
    if messages and messages[0].get("role") == "system":
        joined = f"{system}\n\n{messages[0].get('content', '')}"
        return [{**messages[0], "content": joined}, *messages[1:]]
    return [{"role": "system", "content": system}, *messages]
