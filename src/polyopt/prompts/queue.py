"""`PromptQueue`: the prompts stage at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from polyopt.batch import Batch, Prompt
from polyopt.prompts.protocol import PromptRequest
from polyopt.prompts.stage import Prompts
from polyopt.seeding import generator


class PromptQueue:
    """Turns a task's training prompts into requests, in the order and number of a recipe.

    Args:
        stage: The recipe's prompts field.
        prompts: The task's training prompts.
        per_prompt: Rollouts per prompt, where no allocation says otherwise.
        seed: The run's seed.
    """

    def __init__(self, stage: Prompts, prompts: Sequence[Prompt], per_prompt: int, seed: int):
        self.stage = stage
        self.prompts = prompts
        self.per_prompt = per_prompt
        self.seed = seed
        self.visits = 0
        self.step = -1
        self.occurrences: Counter[str] = Counter()

    def propose(self, count: int, step: int) -> list[PromptRequest]:
        """Requests for `count` prompts that every filter keeps, each a group of its own.

        A filter that rejects a whole epoch is overruled: the last prompt it rejected is taken.
        """
        if step != self.step:
            self.step, self.occurrences = step, Counter()
        chosen = [self._next(step, slot) for slot in range(count)]
        allocation = self.stage.allocation
        numbers = (
            [self.per_prompt] * count if allocation is None else allocation(chosen, self.per_prompt)
        )
        requests = []
        for prompt, rollouts in zip(chosen, numbers, strict=True):
            occurrence = self.occurrences[prompt.id]
            self.occurrences[prompt.id] += 1
            requests.append(PromptRequest(prompt, self.visits, rollouts, occurrence))
            self.visits += 1
        return requests

    def observe(self, batch: Batch) -> None:
        """Tell every filter what came of the requests."""
        for prompt_filter in self.stage.filters:
            prompt_filter.observe(batch)

    def _next(self, step: int, slot: int) -> Prompt:
        size, filters = len(self.prompts), self.stage.filters
        for attempt in range(size):
            prompt = self.prompts[self.stage.source.next_index(size, self.seed)]
            if not filters:
                break
            draws = generator(self.seed, step, "prompts", self.visits, slot, attempt)
            if all(prompt_filter.keep(prompt, draws) for prompt_filter in filters):
                break
        return prompt

    def state_dict(self) -> dict[str, Any]:
        """Visits so far; source and filters keep their own memory."""
        return {"visits": self.visits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.visits = state["visits"]
