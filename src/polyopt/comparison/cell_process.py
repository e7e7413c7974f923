"""`python -m polyopt.comparison.cell_process`: one cell of a comparison, in its own process.

Its order comes as one line of JSON on standard input. That pipe stays open as long as the
comparison lives; when it closes, so does this process, and the run resumes another time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from polyopt.comparison.cells import write_json
from polyopt.errors import UserError


def main() -> int:
    """Train; leave `outcome.json` unless interrupted. Returns the exit code."""
    order = json.loads(_first_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome, started = Path(order["outcome"]), time.monotonic()
    try:
        from polyopt.training import train

        interrupted = train(**order["arguments"]).interrupted
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        write_json(outcome, {"state": "failed", "error": f"{kind}{error}"})
        return 2
    if interrupted:
        return 130
    write_json(outcome, {"state": "finished", "seconds": time.monotonic() - started})
    return 0


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("no order on standard input: this is started by `polyopt compare`")
        line += byte
    return line


def _end_with_parent() -> None:
    """Wait until nobody holds the other end of standard input, then die at once."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
