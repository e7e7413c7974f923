"""Objects from a user's Python file: `path/to/file.py:name`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from polyopt.errors import DataError, did_you_mean


def split_python_spec(spec: str) -> tuple[str, str] | None:
    """(`path/to/file.py`, `name`) of such a spec, with an empty name if none; else None."""
    path, found, name = spec.rpartition(".py:")
    if found:
        return f"{path}.py", name.strip()
    return (spec, "") if spec.endswith(".py") else None


def load_object(path: str | Path, name: str) -> Any:
    """The object called `name` at the top level of a Python file.

    The file is imported once per version of it, so that a task and a reward in one file share its
    state; its folder joins the import path, as it does for a script.

    Raises:
        DataError: No such file, the file fails, or it has no such object.
    """
    module = _import(Path(path))
    public = [n for n in vars(module) if not n.startswith("_") and _defined_in(module, n)]
    if not name:
        raise DataError(
            f"{path}: which object? Write {path}:NAME; names there: {', '.join(public) or 'none'}."
        )
    if name not in vars(module):
        raise DataError(f"{path} has no {name!r}: {did_you_mean(name, public)}")
    return vars(module)[name]


def failing_line(error: BaseException, file: str | Path) -> str:
    """`file.py line 12: ZeroDivisionError: division by zero`, the line being in that file."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    file = Path(file)
    if isinstance(error, SyntaxError) and error.filename == str(file.resolve()):
        return f"{file.name} line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename) == file.resolve()]
    return f"{file.name} line {lines[-1]}: {what}" if lines else what


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise DataError(
            f"no Python file {str(path)!r} (looked in {Path.cwd()}): check the path before the "
            "colon of file.py:NAME."
        )
    file = path.resolve()
    key = hashlib.blake2b(f"{file}:{file.stat().st_mtime_ns}".encode(), digest_size=6).hexdigest()
    name = f"{file.stem}_{key}"
    if name in sys.modules:
        return sys.modules[name]
    source = importlib.util.spec_from_file_location(name, file)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        source.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise DataError(
            f"importing {path} failed at {failing_line(error, path)}. The file must import without "
            "an error; put what only a script should do under `if __name__ == '__main__':`."
        ) from error
    return module


def _defined_in(module: ModuleType, name: str) -> bool:
    """Whether a name is the file's own rather than an import."""
    value = vars(module)[name]
    owner = getattr(value, "__module__", None) if callable(value) else None
    return not isinstance(value, ModuleType) and owner in (None, module.__name__)
