"""Numbers that the data gives with each prompt, as columns."""

from __future__ import annotations

import torch

from polyopt.batch import Batch
from polyopt.errors import DataError
from polyopt.parts import part


@part("rewards.shaping", needs={"metadata:static_value"}, provides={"static_value"})
def static_value(batch: Batch) -> Batch:
    """Adds `static_value` [N]: the number of that name in each prompt's metadata.

    It stands for the reference policy's mean reward on the prompt, measured before training with
    the reward of the run. PVPO, arXiv 2508.21104.

    Raises:
        DataError: A prompt has none, or it isn't a number.
    """
    values = [_number(prompt.metadata.get("static_value"), prompt.id) for prompt in batch.prompts]
    return batch.replace(static_value=torch.tensor(values).to(batch.rewards))


def _number(value: object, prompt_id: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise DataError(
            f"prompt {prompt_id!r} has static_value={value!r}: give each prompt the reference "
            "policy's mean reward on it as a number."
        )
    return float(value)
