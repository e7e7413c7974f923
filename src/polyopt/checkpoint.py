"""Checkpoints: written atomically, verified before they are loaded, with retention."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from polyopt.errors import UserError

MANIFEST = "manifest.json"


def save(folder: Path, step: int, write: Callable[[Path], None], keep: int) -> Path:
    """Write a checkpoint so that it is either whole or not there.

    Args:
        folder: The run's `checkpoints` folder.
        step: Training steps done.
        write: Writes the checkpoint's files into the folder it is given.
        keep: Newest checkpoints to keep; older ones are deleted once this one is in place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final, draft = folder / f"step-{step:06d}", folder / f".draft-{step:06d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    write(draft)
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        _sync(path)
    manifest = {str(path.relative_to(draft)): _digest(path) for path in files}
    (draft / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _sync(draft / MANIFEST)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(draft, final)
    _sync(folder)
    for old in available(folder)[keep:]:
        shutil.rmtree(old)
    return final


def available(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """Training steps done at a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None if every file is as it was written."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"{MANIFEST} is missing or garbled"
    for name, digest in manifest.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _digest(path) != digest:
            return f"{name} has changed since it was written"
    return None


def newest_sound(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; each damaged one is named to `warn`.

    Raises:
        UserError: There are checkpoints, but all of them are damaged.
    """
    found = available(folder)
    for checkpoint in found:
        problem = fault(checkpoint)
        if problem is None:
            return checkpoint
        warn(f"checkpoint {checkpoint} is damaged ({problem}); falling back to the one before it")
    if found:
        raise UserError(
            f"every checkpoint in {folder} is damaged. Start the run again in another folder."
        )
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
