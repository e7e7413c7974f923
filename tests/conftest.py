"""Fixtures shared by the whole test suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_policy

# The tests' models are tiny: threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in Hugging Face format."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tiny_policy().save(folder)
    return folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Ten problems as JSONL."""
    path = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"{i}=", "answer": "ab"[i % 2]} for i in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def reward_file(tmp_path: Path) -> Path:
    """A reward of the user's own: 1 if the completion begins with a letter."""
    path = tmp_path / "rewards.py"
    path.write_text(
        "def letter(completion):\n"
        "    return float(completion[:1] in ('a', 'b'))\n"
        "letter.correctness = True\n"
    )
    return path
