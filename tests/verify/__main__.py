"""`python -m tests.verify FOLDER`: verify every vector file of a folder, a line per case."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.verify.harness import Verdict, read_cases, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per case and a total; 0 if everything passed, 1 if not, 2 without vectors."""
    parser = argparse.ArgumentParser(prog="make verify", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of vector files (*.json)")
    parser.add_argument("keys", nargs="*", help="only these methods")
    parser.add_argument("--failures", action="store_true", help="print only what failed")
    options = parser.parse_args(arguments)
    files = sorted(p for p in options.folder.glob("*.json") if p.name != "KEY.json")
    files = [p for p in files if not options.keys or p.stem in options.keys]
    if not files:
        print(f"no vector files in {options.folder}")
        return 2
    verdicts: list[Verdict] = []
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for path in files:
            for case in read_cases(path):
                verdicts.append(verify(case))
                if not (options.failures and verdicts[-1].passed):
                    print(verdicts[-1], flush=True)
    finally:
        torch.set_default_dtype(usual)
    failed = sum(not verdict.passed for verdict in verdicts)
    print(f"{len(verdicts) - failed} passed, {failed} failed ({len(files)} files)")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
