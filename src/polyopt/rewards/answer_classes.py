"""Which rollouts of a prompt gave the same answer."""

from __future__ import annotations

import torch

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.answers import last_line, marked_answer, visible
from polyopt.rewards.verifiers import normalised


@part("rewards.shaping", provides={"answer_class"})
def answer_class(batch: Batch) -> Batch:
    """Adds `answer_class` [N]: an id per stated answer, equal for equal ones.

    The stated answer is the marked one, else the last line, after normalising (case, spaces,
    quotes, a closing full stop). A rollout that states nothing is in a class of its own.
    """
    ids: dict[str, int] = {}
    classes = []
    for row, text in zip(batch.rollout.tolist(), batch.texts, strict=True):
        shown = visible(text)
        answer = normalised(marked_answer(shown) or last_line(shown))
        classes.append(ids.setdefault(answer, len(ids)) if answer else -1 - row)
    return batch.replace(answer_class=torch.tensor(classes, device=batch.rewards.device))
