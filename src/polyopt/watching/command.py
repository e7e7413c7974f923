"""`polyopt watch RUN`."""

from __future__ import annotations

import math
import threading
import webbrowser
from pathlib import Path

from polyopt.errors import UserError
from polyopt.watching.server import PageServer, serve
from polyopt.watching.snapshots import Snapshots

OF_A_RUN = ("run.json", "run.lock", "metrics.jsonl", "evals.jsonl")


def watch(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    every: float = 2.0,
    browser: bool = False,
) -> None:
    """Serve a run's page until Ctrl-C.

    Raises:
        UserError: There is no such run, or the address can't be listened at.
    """
    _check(run, port, every)
    try:
        with serve(Snapshots(run, every), host, port) as server:
            _say(run, server)
            if browser:
                opening = threading.Thread(target=webbrowser.open, args=(server.address,))
                opening.daemon = True
                opening.start()
            server.serve_forever()
    except KeyboardInterrupt:
        print()


def _check(run: Path, port: int | None, every: float) -> None:
    if not any((run / name).is_file() for name in OF_A_RUN):
        raise UserError(
            f"{run} is no run folder (none of {', '.join(OF_A_RUN)}). Pass the folder that "
            "`polyopt train` prints or was given with --run."
        )
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port {port}: ports go from 1 to 65535 (0: any free one).")
    if not (math.isfinite(every) and every > 0):
        raise UserError(f"--every {every}: it must be above 0 seconds.")


def _say(run: Path, server: PageServer) -> None:
    words = f"{run} at {server.address} (Ctrl-C ends)"
    if server.open_to_others:
        port = server.server_address[1]
        words += (
            "\nAnyone who can reach this machine can read the run there: prompts, completions and "
            "settings, without a password. To watch from afar, prefer the default --host and\n"
            f"  ssh -L {port}:localhost:{port} THIS-MACHINE"
        )
    print(words, flush=True)
