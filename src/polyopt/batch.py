"""`Batch`: N rollouts in columns. The one type that flows through the eight stages.

Words: a *row* is what one training forward sees; a *rollout* is one trajectory (usually one row);
a *group* is the rollouts of one prompt. All three are ids carried by each row, never positions and
never assumed equal in number. The T axis holds completion tokens only, left-aligned; prompts are
columns of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

FORCED = -1
"""Provenance of a completion token that was given (hint, demonstration, reused draft)."""
ENVIRONMENT = -2
"""Provenance of a completion token written by a tool or an environment."""
PADDING = -3
"""Provenance of a place beyond the end of the completion."""


@dataclass(frozen=True)
class Prompt:
    """One problem: what the model is asked and what its answer is checked against.

    Attributes:
        id: Stable name, the same in every run over the same task (`"train/17"`).
        messages: Chat messages (`{"role": ..., "content": ...}`), or a plain string that is given
            to the model as it stands.
        answer: The reference answer, for verifiers.
        metadata: Anything else the task's verifier or an idea needs (hints, difficulty, ...).
    """

    id: str
    messages: str | tuple[Mapping[str, str], ...]
    answer: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The prompt as plain text: the contents of its messages, one after another."""
        if isinstance(self.messages, str):
            return self.messages
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class Batch:
    """N rollouts in columns; immutable.

    Attributes:
        mask: 1 exactly on tokens that the policy itself sampled and that count as its actions:
            never on prompts, hints, tool output, environment text or padding. (Whole rows that
            stand in for the policy's own, marked in a column `demonstration`, are in it as well.)
            [N, T] bool.
        group: Id of the prompt visit that each row belongs to. [N]
        rollout: Id of the trajectory that each row belongs to. [N]
        rewards: Total reward of each row's rollout; NaN means nobody could score it. [N]
        columns: Everything else by name, each a tensor with N rows. Standard names:
            `tokens` [N, T], `lengths` [N] (completion length in tokens), `prompt_tokens` [N, P],
            `prompt_lengths` [N], `provenance` [N, T] (weights version that sampled the token, or
            FORCED, ENVIRONMENT, PADDING), `logp_sampler`, `logp_old`, `logp_ref`, `entropy`,
            `values`, `advantages`, `weights` [N, T], `loss_mask` [N, T] (tokens that train; part
            of `mask`), `truncated` [N].
        prompts: The `Prompt` of each row; empty where only the maths is used.
        texts: The completion of each row as text; empty where only the maths is used.
    """

    mask: Bool[Tensor, "N T"]
    group: Int[Tensor, " N"]
    rollout: Int[Tensor, " N"]
    rewards: Float[Tensor, " N"]
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    prompts: tuple[Prompt, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        mask: Tensor | None = None,
        group: Tensor | None = None,
        rollout: Tensor | None = None,
        rewards: Tensor | None = None,
        prompts: Sequence[Prompt] = (),
        texts: Sequence[str] = (),
        **columns: Tensor,
    ) -> Batch:
        """A batch from the columns one has: for tests, and for other trainers' tensors.

        A missing mask is all ones, a missing group puts all rows in one group, missing rollout ids
        make each row a rollout, missing rewards are zero.
        """
        shapes = [c for c in columns.values() if c.dim() >= 2]
        if mask is None:
            n = len(next(c for c in (rewards, group, *columns.values()) if c is not None))
            mask = torch.ones(n, shapes[0].shape[1] if shapes else 1)
        n = len(mask)
        floats = next((c for c in columns.values() if c.is_floating_point()), None)
        dtype = floats.dtype if floats is not None else torch.get_default_dtype()
        return cls(
            mask=mask.bool(),
            group=torch.zeros(n, dtype=torch.long) if group is None else group.long(),
            rollout=torch.arange(n) if rollout is None else rollout.long(),
            rewards=torch.zeros(n, dtype=dtype) if rewards is None else rewards,
            columns=columns,
            prompts=tuple(prompts),
            texts=tuple(texts),
        )

    def __post_init__(self) -> None:
        n = len(self.mask)
        named = {"group": self.group, "rollout": self.rollout, "rewards": self.rewards}
        for name, column in {**named, **self.columns}.items():
            if len(column) != n:
                raise ValueError(f"batch column {name!r} has {len(column)} rows, mask has {n}")
        for name, objects in (("prompts", self.prompts), ("texts", self.texts)):
            if objects and len(objects) != n:
                raise ValueError(f"batch has {len(objects)} {name} for {n} rows")

    def __len__(self) -> int:
        return len(self.mask)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            have = ", ".join(sorted(self.columns)) or "none"
            raise KeyError(
                f"the batch has no column {name!r} (it has: {have}); a part that reads it must "
                f"declare needs={{{name!r}}}"
            ) from None

    @property
    def width(self) -> int:
        """T: the width of the completion axis in tokens."""
        return self.mask.shape[1]

    @property
    def loss_mask(self) -> Bool[Tensor, "N T"]:
        """Tokens that train: `mask` less what the selection stage left out."""
        return self.columns.get("loss_mask", self.mask).bool()

    @property
    def scored(self) -> Bool[Tensor, " N"]:
        """Rows whose reward is known."""
        return ~torch.isnan(self.rewards)

    @property
    def group_index(self) -> Int[Tensor, " N"]:
        """Groups renumbered 0..G-1 in order of id, for scatter operations."""
        index: Tensor = torch.unique(self.group, return_inverse=True)[1]
        return index

    def replace(self, **changes: Any) -> Batch:
        """A copy with other fields or columns; a column given as None is removed."""
        names = {f.name for f in dataclasses.fields(self)}
        fields = {name: changes.pop(name) for name in list(changes) if name in names}
        columns = {**fields.pop("columns", self.columns), **changes}
        kept = {name: column for name, column in columns.items() if column is not None}
        return dataclasses.replace(self, columns=kept, **fields)

    def select(self, rows: Tensor) -> Batch:
        """The rows of a bool mask [N] or of indices, in that order."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        picked = index.tolist()
        return Batch(
            mask=self.mask[index],
            group=self.group[index],
            rollout=self.rollout[index],
            rewards=self.rewards[index],
            columns={name: column[index] for name, column in self.columns.items()},
            prompts=tuple(self.prompts[i] for i in picked) if self.prompts else (),
            texts=tuple(self.texts[i] for i in picked) if self.texts else (),
        )

    def trim(self) -> Batch:
        """The batch without completion and prompt columns that are padding in every row."""
        if "lengths" not in self.columns or len(self) == 0:
            return self
        width = max(int(self["lengths"].max()), 1)
        prompt_width = int(self["prompt_lengths"].max()) if "prompt_lengths" in self else 0
        columns = dict(self.columns)
        for name, column in columns.items():
            if name == "prompt_tokens":
                columns[name] = column[:, :prompt_width]
            elif column.dim() >= 2 and column.shape[1] == self.width:
                columns[name] = column[:, :width]
        return dataclasses.replace(self, mask=self.mask[:, :width], columns=columns)

    def to(self, device: torch.device | str) -> Batch:
        """The batch with every tensor on `device`."""
        moved = {name: column.to(device) for name, column in self.columns.items()}
        return dataclasses.replace(
            self,
            mask=self.mask.to(device),
            group=self.group.to(device),
            rollout=self.rollout.to(device),
            rewards=self.rewards.to(device),
            columns=moved,
        )


def concat(batches: Sequence[Batch]) -> Batch:
    """One batch with the rows of several, padded to the widest on the right.

    Raises:
        ValueError: No batches, or batches with different columns.
    """
    if not batches:
        raise ValueError("nothing to concatenate")
    if len(batches) == 1:
        return batches[0]
    names = set(batches[0].columns)
    for other in batches[1:]:
        if set(other.columns) != names:
            odd = ", ".join(sorted(names ^ set(other.columns)))
            raise ValueError(f"batches to concatenate differ in columns: {odd}")
    columns = {
        name: _stack([b.columns[name] for b in batches], PADDING if name == "provenance" else 0)
        for name in names
    }
    return Batch(
        mask=_stack([b.mask for b in batches], 0),
        group=torch.cat([b.group for b in batches]),
        rollout=torch.cat([b.rollout for b in batches]),
        rewards=torch.cat([b.rewards for b in batches]),
        columns=columns,
        prompts=tuple(prompt for b in batches for prompt in b.prompts),
        texts=tuple(text for b in batches for text in b.texts),
    )


def _stack(columns: Sequence[Tensor], fill: int) -> Tensor:
    """Concatenate rows; columns of two or more axes are first padded to one width."""
    if columns[0].dim() == 1:
        return torch.cat(list(columns))
    width = max(column.shape[1] for column in columns)
    tail = (0, 0) * (columns[0].dim() - 2)
    return torch.cat(
        [pad(column, (*tail, 0, width - column.shape[1]), value=fill) for column in columns]
    )
