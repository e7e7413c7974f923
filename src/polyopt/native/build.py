"""Compiles the C kernels at first use and keeps the result in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
ENTRY = SOURCES / "kernels.c"
COMMON = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-std=gnu11")
TARGETS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ())
"""Flags to try, best first: not every compiler knows its own machine, or OpenMP."""


def compiler() -> str | None:
    """The C compiler: `$CC`, or the first that is there."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    return None


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "polyopt"


def compiled() -> Path | None:
    """The shared library for this machine, compiled if it isn't there; None if it can't be.

    Its name holds a digest of the sources, the compiler and the processor, so a change of any of
    them makes a new one. Several processes may compile at once: each writes a file of its own and
    renames it.
    """
    cc = compiler()
    if cc is None or platform.system() not in ("Linux", "Darwin"):
        return None
    library = cache_folder() / f"kernels-{_digest(cc)}.so"
    if library.is_file():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = _compile(cc, Path(folder))
            if made is None:
                return None
            made.replace(library)
    except OSError:
        return None
    return library


def _compile(cc: str, folder: Path) -> Path | None:
    """Compile with the first flags that work.

    OpenMP's functions are left for the loader to find: PyTorch's own copy of the runtime is in the
    process already, and a second one would bring a second crew of threads.
    """
    unit, library = folder / "kernels.o", folder / "kernels.so"
    undefined = ("-undefined", "dynamic_lookup") if platform.system() == "Darwin" else ()
    for target in TARGETS:
        steps = (
            (cc, *COMMON, *target, "-c", str(ENTRY), "-o", str(unit)),
            (cc, "-shared", *undefined, str(unit), "-o", str(library), "-lm"),
        )
        if all(_succeeds(step) for step in steps):
            return library
    return None


def _succeeds(command: tuple[str, ...]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _digest(cc: str) -> str:
    version = subprocess.run([cc, "--version"], capture_output=True, check=False).stdout
    text = hashlib.sha256(version + _processor().encode())
    for source in sorted([*SOURCES.glob("*.[ch]"), Path(__file__)]):
        text.update(source.read_bytes())
    return text.hexdigest()[:16]


def _processor() -> str:
    """What tells one kind of processor from another: name and abilities."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    names = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))
