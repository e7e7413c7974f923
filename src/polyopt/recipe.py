"""`Recipe`: a training run as a sum of ideas, one field per stage.

An idea is a function `Recipe -> Recipe` (see `polyopt.ideas`). It speaks to a recipe in three
words: `claim` a slot (the idea is *about* this; another idea's different claim is an error),
`suggest` a slot (a default it comes with; any claim replaces it) and `append` to a chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from polyopt.advantages.stage import Advantages
from polyopt.columns import COMPUTED, GIVEN, SAMPLED
from polyopt.errors import RecipeError
from polyopt.objectives.objective import Objective
from polyopt.parts import info_of, name_of, walk
from polyopt.paths import assign, leaves, read
from polyopt.prompts.stage import Prompts
from polyopt.replay.stage import Replay
from polyopt.rewards.stage import Rewards
from polyopt.rollouts.stage import Rollouts
from polyopt.selection.stage import Selection
from polyopt.updates.stage import Updates


@dataclass(frozen=True)
class Origin:
    """Who filled a slot: the idea, and whether it claimed the slot or only suggested a value."""

    idea: str
    claimed: bool


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a training run except the model and the task.

    Attributes:
        prompts: Which prompts next, and how many a step.
        rollouts: How completions are sampled.
        rewards: What happens to the task's reward before credit is assigned.
        replay: Which past experience joins the batch.
        advantages: Which rollout, segment and token deserves credit.
        selection: Which rollouts and tokens train, at what weight.
        objective: The loss as a function of log-probabilities.
        updates: How optimizer steps are taken with it.
        ideas: Names of the ideas applied, in order.
        origins: Which idea filled which slot.
    """

    prompts: Prompts = field(default_factory=Prompts)
    rollouts: Rollouts = field(default_factory=Rollouts)
    rewards: Rewards = field(default_factory=Rewards)
    replay: Replay = field(default_factory=Replay)
    advantages: Advantages = field(default_factory=Advantages)
    selection: Selection = field(default_factory=Selection)
    objective: Objective = field(default_factory=Objective)
    updates: Updates = field(default_factory=Updates)
    ideas: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The expression that made this recipe."""
        return "+".join(self.ideas) or "base"

    @property
    def _applying(self) -> str:
        return self.ideas[-1] if self.ideas else "the base recipe"

    def claim(self, slot: str, value: object) -> Recipe:
        """Fill a slot that the idea being applied is about.

        Raises:
            RecipeError: Another idea has claimed the slot with a different value.
        """
        origin = self.origins.get(slot)
        if origin and origin.claimed and origin.idea != self._applying:
            held = read(self, slot)
            if held != value:
                raise RecipeError(
                    f"{origin.idea!r} and {self._applying!r} both claim {slot}: "
                    f"{_show(held)} against {_show(value)}. Drop one of the two ideas, or use a "
                    f"narrower idea that leaves {slot} alone (`polyopt recipes` lists them)."
                )
        return self._put(slot, value, claimed=True)

    def suggest(self, slot: str, value: object) -> Recipe:
        """Fill a slot with a default; an earlier or later claim by another idea wins."""
        origin = self.origins.get(slot)
        if origin and origin.claimed:
            return self
        return self._put(slot, value, claimed=False)

    def append(self, slot: str, *parts: object) -> Recipe:
        """Append parts to a chain (`rewards.shaping`, `advantages.shaping`, ...).

        Raises:
            RecipeError: The chain already holds that very part.
        """
        recipe = self
        for new in parts:
            chain = read(recipe, slot)
            if not isinstance(chain, tuple):
                raise RecipeError(f"{slot} holds one part, not a chain: use claim, not append")
            if any(name_of(new) == name_of(old) for old in chain):
                owner = recipe.origins[f"{slot}[{_position(chain, new)}]"].idea
                raise RecipeError(
                    f"{self._applying!r} adds {name_of(new)!r} to {slot}, where {owner!r} has "
                    "already put it: name only one of the two ideas."
                )
            origins = {**recipe.origins, f"{slot}[{len(chain)}]": Origin(self._applying, True)}
            recipe = dataclasses.replace(assign(recipe, slot, (*chain, new)), origins=origins)
        return recipe

    def override(self, assignments: Mapping[str, str | object]) -> Recipe:
        """Set any value by path, as `--set` does: `{"objective.clip_high": "0.3"}`.

        A path may leave out middle names where that is unambiguous. Strings are read as the type
        of the value they replace.

        Raises:
            RecipeError: Unknown or ambiguous path, or a value of another type.
        """
        recipe = self
        for path, value in assignments.items():
            recipe = assign(recipe, path, value, parse=True)
        return recipe

    def needs(self) -> frozenset[str]:
        """Every column that some part reads."""
        infos = (info_of(item) for _, item in walk(self))
        return frozenset(name for info in infos if info for name in info.needs)

    def provides(self) -> frozenset[str]:
        """Every column that may be there: by sampling, the trainer, a part, or an environment."""
        infos = (info_of(item) for _, item in walk(self))
        added = frozenset(name for info in infos if info for name in info.provides)
        return SAMPLED | COMPUTED | frozenset(GIVEN) | added

    def given(self) -> dict[str, str]:
        """Columns that some part reads and only an environment can give, with their meanings."""
        infos = [info for _, item in walk(self) if (info := info_of(item))]
        provided = {name for info in infos for name in info.provides}
        return {n: GIVEN[n] for n in sorted(self.needs()) if n in GIVEN and n not in provided}

    def check(self) -> Recipe:
        """The recipe itself, once it is known that every part gets what it needs.

        Raises:
            RecipeError: A column that nothing provides, or too few rollouts per prompt.
        """
        self._check_numbers()
        surrogate = self.objective.surrogate
        if getattr(surrogate, "aggregates", False) and self.objective.trust_region:
            limit = name_of(self.objective.trust_region[0])
            raise RecipeError(
                f"{limit!r} (from {self._owner('objective.trust_region[0]')}) changes token "
                f"losses, but {name_of(surrogate)!r} (from {self._owner('objective.surrogate')}) "
                "defines its own reduction and has none. Drop one of the two ideas."
            )
        available = self.provides()
        for path, item in walk(self):
            info = info_of(item)
            if info is None:
                continue
            missing = sorted(name for name in info.needs - available if ":" not in name)
            if missing:
                raise RecipeError(
                    f"{info.name!r} ({path}, from {self._owner(path)}) needs {missing[0]!r}, which "
                    f"nothing in {self.name!r} provides. {_provider_hint(missing[0])}"
                )
            if self.rollouts.per_prompt < info.min_rollouts:
                raise RecipeError(
                    f"{info.name!r} ({path}, from {self._owner(path)}) compares the rollouts of a "
                    f"prompt and needs at least {info.min_rollouts} of them, but "
                    f"rollouts.per_prompt is {self.rollouts.per_prompt} "
                    f"(from {self._owner('rollouts.per_prompt')}). Raise it with --set "
                    f"rollouts.per_prompt={max(info.min_rollouts, 8)}, or use an idea that needs "
                    "no group, such as reinforce++."
                )
        return self

    def _check_numbers(self) -> None:
        """Numbers that no run can work with."""
        rollouts = self.rollouts
        if rollouts.temperature <= 0:
            raise RecipeError(
                f"rollouts.temperature is {rollouts.temperature}: greedy decoding is no policy to "
                "take gradients of. Use --temperature 1, or any value above 0."
            )
        if not 0 < rollouts.top_p <= 1:
            raise RecipeError(f"rollouts.top_p is {rollouts.top_p}: it must be above 0, at most 1.")
        for slot in (
            "prompts.per_step",
            "rollouts.per_prompt",
            "rollouts.max_tokens",
            "updates.micro_tokens",
        ):
            if read(self, slot) < 1:
                raise RecipeError(f"{slot} is {read(self, slot)}: it must be at least 1.")

    def _put(self, slot: str, value: object, *, claimed: bool) -> Recipe:
        origins = {**self.origins, slot: Origin(self._applying, claimed)}
        return dataclasses.replace(assign(self, slot, value), origins=origins)

    def _owner(self, path: str) -> str:
        """Name of the idea that filled a slot, or words for the defaults."""
        origin = self.origins.get(path)
        return repr(origin.idea) if origin else "the defaults"


def _show(value: object) -> str:
    """A value in an error message: a number, or a part with its numbers."""
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    numbers = ", ".join(f"{name}={number!r}" for name, number in leaves(value).items())
    return f"{name_of(value)}({numbers})" if numbers else name_of(value)


def _position(chain: tuple[object, ...], new: object) -> int:
    return next(i for i, old in enumerate(chain) if name_of(old) == name_of(new))


def _provider_hint(column: str) -> str:
    from polyopt.parts import load_all_parts

    makers = sorted(i.name for i in load_all_parts().values() if column in i.provides)
    if makers:
        return f"Parts that provide it: {', '.join(makers)}."
    return "No registered part provides it: check the spelling in the part's `needs`."
