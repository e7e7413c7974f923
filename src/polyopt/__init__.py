"""polyopt: policy improvement as a sum of published ideas.

    import polyopt
    result = polyopt.train("embedded", "reasoning_gym:chain_sum", "dapo+ktae", steps=100)

Everything below is loaded on first use, so importing polyopt is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from polyopt.batch import Batch as Batch
    from polyopt.batch import Prompt as Prompt
    from polyopt.errors import UserError as UserError
    from polyopt.ideas import build as build
    from polyopt.ideas import find_idea as find_idea
    from polyopt.ideas import idea as idea
    from polyopt.ideas import mix as mix
    from polyopt.models.loading import load_policy as load_policy
    from polyopt.models.policy import Policy as Policy
    from polyopt.objectives.objective import Objective as Objective
    from polyopt.objectives.protocol import Evaluation as Evaluation
    from polyopt.parts import part as part
    from polyopt.recipe import Recipe as Recipe
    from polyopt.rewards.protocol import RewardTerm as RewardTerm
    from polyopt.tasks.load import load_task as load_task
    from polyopt.tasks.task import Task as Task
    from polyopt.trainer import Trainer as Trainer
    from polyopt.training import train as train
    from polyopt.writers.protocol import MetricWriter as MetricWriter

_HOMES = {
    "Batch": "batch",
    "Prompt": "batch",
    "UserError": "errors",
    "build": "ideas",
    "find_idea": "ideas",
    "idea": "ideas",
    "mix": "ideas",
    "load_policy": "models.loading",
    "Policy": "models.policy",
    "Objective": "objectives.objective",
    "Evaluation": "objectives.protocol",
    "part": "parts",
    "Recipe": "recipe",
    "RewardTerm": "rewards.protocol",
    "load_task": "tasks.load",
    "Task": "tasks.task",
    "Trainer": "trainer",
    "train": "training",
    "MetricWriter": "writers.protocol",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'polyopt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyopt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
