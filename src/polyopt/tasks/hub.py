"""Data sets of the Hugging Face hub, or of a local folder, as rows."""

from __future__ import annotations

from typing import Any

from polyopt.errors import DataError, UserError
from polyopt.tasks.rows import Row


def read_hub_rows(name: str, split: str, config: str | None = None) -> list[Row]:
    """All records of one split.

    Args:
        name: `owner/name` on the hub, or a folder of data files.
        split: Name of the split; slices such as `train[:1000]` work.
        config: Configuration of the data set, for those that have several.

    Raises:
        DataError: No such data set, split or configuration, or no records.
        UserError: The package `datasets` isn't installed.
    """
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"task {name!r}: data sets of the hub need the package datasets, which isn't "
            "installed: pip install 'polyopt[data]'."
        ) from None
    try:
        table: Any = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the package raises a dozen kinds, network errors among them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise DataError(
            f"data set {name!r} (configuration {config or 'default'!r}, split {split!r}) can't be "
            f"loaded: {type(error).__name__}: {reason} Check the name, --split and --task-option "
            "config=NAME, or the connection to the hub."
        ) from error
    rows = [Row(f"{name}[{split}] row {i}", record) for i, record in enumerate(table)]
    if not rows:
        raise DataError(f"{name}[{split}] is empty: choose another --split.")
    return rows
