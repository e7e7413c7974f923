"""Which writers a run has: TensorBoard's always, tracking services by `--log`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from polyopt.errors import UserError, did_you_mean
from polyopt.writers.protocol import MetricWriter
from polyopt.writers.tensorboard import TensorBoardWriter
from polyopt.writers.trackio import TrackioWriter
from polyopt.writers.wandb import WandbWriter

SERVICES: dict[str, type[TrackioWriter] | type[WandbWriter]] = {
    "wandb": WandbWriter,
    "trackio": TrackioWriter,
}
"""Names for `--log`; each is also the package that it needs, and the extra that installs it."""


def check_services(names: Sequence[str]) -> None:
    """Raise for the first name that is unknown, repeated or not installed.

    Raises:
        UserError: The message names the way out.
    """
    for i, name in enumerate(names):
        if name == "tensorboard":
            raise UserError(
                "--log tensorboard: its files are always written, in tensorboard/ of the run "
                "folder. Leave the option out."
            )
        if name not in SERVICES:
            raise UserError(f"--log {name}: no such service; {did_you_mean(name, SERVICES)}")
        if name in names[:i]:
            raise UserError(f"--log {name} is given twice: once is enough.")
        if not _installed(name):
            raise UserError(
                f"--log {name} needs the package {name}: pip install 'polyopt[{name}]'."
            )


def writers_for(names: Sequence[str]) -> list[MetricWriter]:
    """TensorBoard's writer and those of the named services."""
    return [TensorBoardWriter(), *(SERVICES[name]() for name in names)]


def _installed(package: str) -> bool:
    """Whether a package can be imported; a mere folder of that name (`./wandb`) doesn't count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
