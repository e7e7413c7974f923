"""Statistics over groups: sums, deviations, ranks and quantiles within each prompt's rollouts.

Every function takes values and `index`, the group of each value counted from 0, and gives each
value its group's statistic back. With `one_group` the whole batch is the group.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Values = Float[Tensor, " N"]
Index = Int[Tensor, " N"]


def one_group(values: Tensor) -> Index:
    """An index that puts all values into one group."""
    return torch.zeros(len(values), dtype=torch.long, device=values.device)


def group_size(index: Index) -> int:
    """Number of groups."""
    return int(index.max()) + 1 if len(index) else 0


def group_sum(values: Values, index: Index) -> Values:
    """Sum over each row's group."""
    sums = values.new_zeros(group_size(index)).index_add(0, index, values)
    return sums[index]


def group_count(index: Index, like: Tensor) -> Values:
    """Rows in each row's group."""
    return group_sum(torch.ones_like(like), index)


def group_mean(values: Values, index: Index) -> Values:
    """Mean over each row's group."""
    return group_sum(values, index) / group_count(index, values)


def group_std(values: Values, index: Index, ddof: int = 1) -> Values:
    """Standard deviation over each row's group; exactly 0 for a group of one or of equal values."""
    deviation = group_deviation(values, index)
    count = group_count(index, values)
    return (group_sum(deviation.square(), index) / (count - ddof).clamp(min=1)).sqrt()


def group_min(values: Values, index: Index) -> Values:
    """Smallest value of each row's group."""
    low = values.new_full((group_size(index),), math.inf)
    return low.scatter_reduce(0, index, values, "amin")[index]


def group_max(values: Values, index: Index) -> Values:
    """Largest value of each row's group."""
    return -group_min(-values, index)


def group_flat(values: Values, index: Index) -> Bool[Tensor, " N"]:
    """Whether all values of each row's group are equal."""
    return group_min(values, index) == group_max(values, index)


def group_deviation(values: Values, index: Index) -> Values:
    """Values less their group's mean; exactly 0 where a group's values are all equal.

    The mean of n equal floats need not equal them, and dividing that rounding error by a
    deviation of the same size would make a signal of it.
    """
    flat = group_flat(values, index)
    return torch.where(flat, torch.zeros_like(values), values - group_mean(values, index))


def group_z_score(values: Values, index: Index, eps: float, ddof: int = 1) -> Values:
    """(x - mean_g) / (std_g + eps); exactly 0 for a group of one or of equal values."""
    return group_deviation(values, index) / (group_std(values, index, ddof) + eps)


def group_order(values: Values, index: Index) -> Index:
    """Positions sorted by group, then by value; ties keep their order."""
    by_value = torch.argsort(values, stable=True)
    return by_value[torch.argsort(index[by_value], stable=True)]


def group_rank(values: Values, index: Index) -> Index:
    """Place of each value in its group in ascending order, from 0; ties keep their order."""
    order = group_order(values, index)
    places = torch.arange(len(values), device=index.device) - group_start(index)[order]
    return torch.empty_like(order).scatter(0, order, places)


def group_start(index: Index) -> Index:
    """Where each row's group begins among positions that are sorted by group."""
    sizes = torch.bincount(index, minlength=group_size(index))
    return (sizes.cumsum(0) - sizes)[index]


def group_first(index: Index) -> Index:
    """Position of the first row of each row's group."""
    rows = torch.arange(len(index), device=index.device)
    first = rows.new_full((group_size(index),), len(index))
    return first.scatter_reduce(0, index, rows, "amin")[index]


def group_quantile(values: Values, index: Index, level: float) -> Values:
    """Quantile of each row's group, linear between the values at both sides of level (n - 1)."""
    place = level * (group_count(index, values) - 1)
    low, high = (_at(values, index, p.long()) for p in (place.floor(), place.ceil()))
    return low + (place - place.floor()) * (high - low)


def group_quantile_step(values: Values, index: Index, level: float) -> Values:
    """Smallest value of each row's group that at least a share `level` of it doesn't exceed."""
    count = group_count(index, values)
    place = (level * count - 1e-9).ceil().clamp(min=1) - 1
    return _at(values, index, torch.minimum(place, count - 1).long())


def _at(values: Values, index: Index, place: Index) -> Values:
    """For each row, the value at a place of its sorted group."""
    return values[group_order(values, index)][group_start(index) + place]


def per_group(values: Values, index: Index) -> Float[Tensor, " G"]:
    """One value per group, from values that are equal within each."""
    return values.new_zeros(group_size(index)).index_copy(0, index, values)


def subgroups(labels: Int[Tensor, " N"], index: Index) -> Index:
    """An index of the pairs (group, label): the classes into which each group falls."""
    pairs = torch.stack([index, labels.long()], dim=1)
    found: Tensor = torch.unique(pairs, dim=0, return_inverse=True)[1]
    return found.reshape(-1)
