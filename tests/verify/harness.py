"""The vector harness: runs a part on recorded inputs and compares with recorded outputs.

A vector file holds cases of one method: inputs, params and the expected values (losses with
gradients). A mapping turns one case into outputs by calling the parts; it is registered under the
method's key. What isn't mapped, or leaves an input or param unread, fails: nothing is skipped.

    python -m tests.verify FOLDER
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation

TOLERANCE = 1e-6
"""Largest error of a value, absolute or relative to values above 1; files may ask for less."""

Outputs = Mapping[str, Any]


@dataclass
class Case:
    """One recorded case; remembers what the mapping has read of it."""

    key: str
    name: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    expected: Mapping[str, Any]
    tolerance: float = TOLERANCE
    read: set[str] = field(default_factory=set)

    def raw(self, name: str) -> Any:
        """An input as it stands in the file."""
        self.read.add(f"inputs.{name}")
        return self.inputs[name]

    def has(self, name: str) -> bool:
        """Whether there is such an input."""
        return name in self.inputs

    def tensor(self, name: str) -> Tensor:
        """An input as a float64 tensor (null becomes NaN)."""
        return torch.tensor(_with_nan(self.raw(name)), dtype=torch.float64)

    def ids(self, name: str) -> Tensor:
        """An input of whole numbers, such as tokens or groups."""
        return torch.tensor(self.raw(name), dtype=torch.long)

    def param(self, name: str, *default: Any) -> Any:
        """A param; with a default, one that may be missing."""
        self.read.add(f"params.{name}")
        return self.params.get(name, *default) if default else self.params[name]

    def batch(self, *columns: str, **given: Tensor) -> Batch:
        """A batch of the named inputs and of given tensors.

        `mask`, `group` and `rewards` are taken along wherever the case has them; a rollout-level
        `advantages` [N] is spread over its tokens.
        """
        for name in ("mask", "rewards"):
            if self.has(name) and name not in given:
                given[name] = self.tensor(name)
        if self.has("group") and "group" not in given:
            given["group"] = self.ids("group")
        for name in columns:
            whole = name in ("tokens", "turns", "segments", "steps")
            given[name] = self.ids(name) if whole else self.tensor(name)
        advantages = given.get("advantages")
        if advantages is not None and advantages.dim() == 1:
            width = given["mask"].shape[1]
            given["advantages"] = advantages[:, None].expand(-1, width).clone()
        return Batch.of(**given)

    def unread(self) -> list[str]:
        """Inputs and params that the mapping ignored."""
        known = {f"inputs.{n}" for n in self.inputs} | {f"params.{n}" for n in self.params}
        return sorted(known - self.read)


Mapper = Callable[[Case], Outputs]
MAPPINGS: dict[str, Mapper] = {}


def maps(*keys: str) -> Callable[[Mapper], Mapper]:
    """Register the function below as the mapping of these methods' vectors."""

    def register(function: Mapper) -> Mapper:
        for key in keys:
            if key in MAPPINGS:
                raise ValueError(f"two mappings for {key}")
            MAPPINGS[key] = function
        return function

    return register


def loss_and_grad(
    objective: Objective, batch: Batch, logp: Tensor, **fields: Tensor
) -> dict[str, Any]:
    """Loss of an objective and its gradient with respect to the log-probabilities."""
    leaf = logp.clone().requires_grad_()
    result = objective(Evaluation(leaf, **fields), batch)
    (grad,) = torch.autograd.grad(result.loss, leaf, allow_unused=True)
    return {
        "loss": result.loss.detach(),
        "grad_logp": torch.zeros_like(logp) if grad is None else grad,
        "metrics": result.metrics,
    }


@dataclass(frozen=True)
class Verdict:
    """What came of one case."""

    key: str
    case: str
    error: float
    problem: str | None

    @property
    def passed(self) -> bool:
        """Whether every expected value was reproduced."""
        return self.problem is None

    def __str__(self) -> str:
        end = "pass" if self.passed else f"FAIL {self.problem}"
        return f"{self.key:28} {self.case:60} {self.error:9.2e} {end}"


@functools.cache
def load_mappings() -> dict[str, Mapper]:
    """Import every module of `mappings`."""
    package = importlib.import_module("tests.verify.mappings")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"tests.verify.mappings.{module.name}")
    return MAPPINGS


def read_cases(path: Path) -> list[Case]:
    """The cases of one vector file."""
    content = json.loads(path.read_text())
    return [
        Case(
            content["method"],
            case["name"],
            case["inputs"],
            case.get("params") or {},
            case["expected"],
            max(case.get("atol") or TOLERANCE, TOLERANCE),
        )
        for case in content["cases"]
    ]


def verify(case: Case) -> Verdict:
    """Run the case's mapping and compare every expected value."""
    mapping = load_mappings().get(case.key)
    if mapping is None:
        return Verdict(case.key, case.name, math.inf, "no mapping for this key")
    try:
        outputs = mapping(case)
        worst, where = largest_error(case.expected, outputs)
    except Exception as error:
        return Verdict(case.key, case.name, math.inf, f"{type(error).__name__}: {error}")
    if case.unread():
        return Verdict(case.key, case.name, worst, f"unread: {', '.join(case.unread())}")
    if not worst <= case.tolerance:
        return Verdict(case.key, case.name, worst, f"off at {where}")
    return Verdict(case.key, case.name, worst, None)


def largest_error(expected: Any, actual: Any, where: str = "") -> tuple[float, str]:
    """Largest error inside a nested expectation, and where it is.

    Raises:
        ValueError: A value is missing, or of another shape or kind.
    """
    if isinstance(expected, Mapping):
        missing = [name for name in expected if name not in actual]
        if missing:
            raise ValueError(f"no output for {where}{missing[0]!r}")
        errors = [largest_error(v, actual[k], f"{where}{k}.") for k, v in expected.items()]
        return max(errors, default=(0.0, where), key=_severity)
    if isinstance(actual, Tensor):
        actual = actual.detach().tolist()
    if isinstance(expected, list):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            raise ValueError(f"{where} has another shape than expected")
        pairs = zip(expected, actual, strict=True)
        errors = [largest_error(e, a, f"{where}{i}.") for i, (e, a) in enumerate(pairs)]
        return max(errors, default=(0.0, where), key=_severity)
    return _difference(expected, actual), where


def _severity(error: tuple[float, str]) -> float:
    return math.inf if math.isnan(error[0]) else error[0]


def _difference(expected: Any, actual: Any) -> float:
    """Absolute error, relative for values above 1; infinite where kinds differ."""
    if expected is None or isinstance(expected, str) or actual is None or isinstance(actual, str):
        absent = expected is None and isinstance(actual, float) and math.isnan(actual)
        return 0.0 if expected == actual or absent else math.inf
    a, e = float(actual), float(expected)
    if a == e or (math.isnan(a) and math.isnan(e)):
        return 0.0
    return abs(a - e) / max(1.0, abs(e)) if math.isfinite(a) else math.inf


def _with_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value
