"""An engine whose weights lag behind, and that says so."""

from __future__ import annotations

import copy

from polyopt.engines.local import LocalEngine
from polyopt.models.policy import Policy


class LaggingEngine(LocalEngine):
    """Samples from a copy of the weights that is renewed at every `every`-th update."""

    def __init__(self, policy: Policy, every: int) -> None:
        self.copied = Policy(copy.deepcopy(policy.model), policy.tokenizer)
        self.every, self.calls = every, 0
        super().__init__(self.copied.model, policy.decode)

    def sync(self, policy: Policy) -> None:
        """Take over the policy's weights if it is time."""
        if self.calls % self.every == 0:
            self.copied.model.load_state_dict(policy.model.state_dict())
            self.copied.version = policy.version
        self.calls += 1
        super().sync(self.copied)
