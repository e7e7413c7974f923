"""Run a page's bash blocks in one shell, as a reader would, with `polyopt` at a smaller scale.

`polyopt` is a small script on the shell's path that hands its words over a socket to the test's own
process (so PyTorch is imported once); that runs the real command line on what `smaller` gives.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENT = """#!{python} -SE
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({address!r})
s.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode())
s.shutdown(socket.SHUT_WR)
code, text = json.loads(b"".join(iter(lambda: s.recv(65536), b"")))
sys.stdout.write(text)
sys.exit(code)
"""

MOST = {
    "train": {"--steps": 1, "--prompts": 2, "--rollouts": 2, "--eval-limit": 2},
    "compare": {"--steps": 1, "--prompts": 2, "--rollouts": 2, "--eval-limit": 2, "--seeds": 1},
    "eval": {"--limit": 2, "--samples": 2},
}
"""Largest numbers with which a command is run; where it gives none, or a larger one, these hold."""

MODELS = ("smollm2", "my-model", "runs/my-run/model")
"""Models that are too large for a test, or a reader's own: the embedded one stands in for them."""

CONTEXT = 64
"""Most completion tokens then: the embedded model's context is short."""


def smaller(words: Sequence[str]) -> list[str]:
    """The words of a polyopt command at a scale of seconds; everything else in it stays."""
    if "--runs" in words:
        return list(words)
    found = ["embedded" if word in MODELS else word for word in words]
    numbers = dict(MOST.get(words[0], {}))
    if found != list(words):
        numbers["--max-tokens"] = CONTEXT
    for option, most in numbers.items():
        if option not in found:
            found += [option, str(most)]
        elif int(found[found.index(option) + 1]) > most:
            found[found.index(option) + 1] = str(most)
    return found


def commands(text: str) -> list[str]:
    """The commands of a block: continued lines joined, here-documents kept whole."""
    found: list[str] = []
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        here = re.search(r"<<'?(\w+)'?", line)
        if here:
            rest = [line]
            while rest[-1] != here.group(1):
                rest.append(next(lines))
            found.append("\n".join(rest))
        elif words_of(line):
            found.append(line)
    return found


def words_of(command: str) -> list[str]:
    """A command's words without its comment."""
    return shlex.split(command, comments=True)


@dataclass
class Ran:
    """A polyopt command that a page ran: its words, exit code and output."""

    words: list[str]
    code: int
    output: str


def run(script: str, folder: Path) -> list[Ran]:
    """Run a script in a folder to its end.

    Raises:
        AssertionError: Some command of it failed; the message shows its output.
    """
    ran: list[Ran] = []
    with tempfile.TemporaryDirectory() as programs, socket.socket(socket.AF_UNIX) as server:
        address = f"{programs}/socket"  # a short path: sockets allow about 100 characters
        client = Path(programs) / "polyopt"
        client.write_text(CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        server.bind(address)
        server.listen()
        server.settimeout(0.05)
        written = Path(programs) / "output"
        with (
            written.open("w") as output,
            subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail", "-c", script],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as shell,
        ):
            while shell.poll() is None:
                with contextlib.suppress(TimeoutError):
                    ran.append(_serve(server))
        text = written.read_text()
    assert shell.returncode == 0, f"{script}\n--- ended with {shell.returncode}:\n{text}"
    return ran


def _serve(server: socket.socket) -> Ran:
    """Answer one call of the shell's `polyopt`."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(None)
        folder, words = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
        ran = _polyopt(words, folder)
        found_something = words[0] == "doctor" and ran.code == 1
        answer = json.dumps([0 if found_something else ran.code, ran.output])
        connection.sendall(answer.encode())
    return ran


def _polyopt(words: list[str], folder: str) -> Ran:
    from polyopt.cli import main

    output = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            code = main(smaller(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Ran(words, code, output.getvalue())
