"""A real vLLM server process, for the longer evidence.

It runs in the interpreter that `POLYOPT_VLLM_PYTHON` names (docs/engines.md shows how one is made),
or in this one if it has vLLM.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyopt.models.policy import Policy


@contextmanager
def vllm_server(policy: Policy) -> Iterator[str]:
    """Serve the policy's present weights; gives the address with its path."""
    python = os.environ.get("POLYOPT_VLLM_PYTHON")
    if python is None and importlib.util.find_spec("vllm") is None:
        pytest.skip("no vLLM: name an interpreter that has it in POLYOPT_VLLM_PYTHON")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy.save(folder / "small")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                _command(python or sys.executable, folder / "small", port),
                env=os.environ | _ENVIRONMENT,
                stdout=log,
                stderr=log,
            )
        try:
            _wait(process, port, folder / "log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def _command(python: str, folder: Path, port: int) -> list[str]:
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(folder), "--served-model-name", "small"]
    command += ["--dtype", "float32", "--enforce-eager", "--generation-config", "vllm"]
    return [*command, "--logprobs-mode", "processed_logprobs"]


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server is healthy."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"vLLM didn't start:\n{log.read_text(errors='replace')[-3000:]}")
