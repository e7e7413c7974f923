"""polyopt's advantages and objectives in verl's registries, under the names of their ideas.

    import polyopt.adapters.verl     # or: export VERL_USE_EXTERNAL_MODULES=polyopt.adapters.verl

registers every idea of the catalog that brings advantages as an advantage estimator, and every one
that brings a loss as a policy loss. A name that verl has already is registered as `polyopt-NAME`.
`register("dapo+ktae")` does the same for an expression, and `settings("dapo+ktae")` gives the
options of verl that go with it.

An idea that needs what verl doesn't hand to such functions is registered as well: calling it is an
error that says what is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyopt.adapters import verl_options
from polyopt.adapters.limits import Host, check
from polyopt.adapters.padded_tensors import credit, group_ids, padded_batch
from polyopt.adapters.verl_options import Names
from polyopt.batch import Batch
from polyopt.errors import UserError
from polyopt.ideas import build, load_catalog
from polyopt.objectives.protocol import Evaluation
from polyopt.recipe import Recipe
from polyopt.rewards.dense import last_token
from polyopt.updates.tally import TokenMeans

try:
    from verl.trainer.ppo import core_algos  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise UserError(
        "polyopt.adapters.verl needs verl, which can't be imported "
        f"({error}): pip install verl==0.9.1"
    ) from error

CREDIT = Host(
    name="verl's advantage estimation",
    columns=frozenset({"lengths", "max_tokens", "provenance"}),
)
"""What verl hands to every advantage estimator; see `BATCH_COLUMNS` for more."""

BATCH_COLUMNS = {
    "responses": "tokens",
    "prompts": "prompt_tokens",
    "old_log_probs": "logp_old",
    "rollout_log_probs": "logp_sampler",
    "ref_log_prob": "logp_ref",
    "values": "values",
    "entropys": "entropy",
}
"""Tensors of verl's data and our names: there if an estimator is called with `batch`."""

LOSS = Host(
    name="verl's policy loss",
    columns=frozenset({"advantages", "logp_old", "lengths", "max_tokens", "provenance"}),
)
"""What verl hands to every policy loss; KL and entropy terms are verl's own."""

REGISTERED: dict[str, Names] = {}
"""Expression to its names in verl's registries; complete for the catalog after import."""


def register(expression: str | Recipe) -> Names:
    """Register an expression's advantages and loss with verl; the names that they got.

    Raises:
        UserError: An expression that can't be built.
    """
    recipe = build(expression)
    name = recipe.name
    if name not in REGISTERED:
        estimator = _free_name(name, core_algos.ADV_ESTIMATOR_REGISTRY)
        loss = _free_name(name, core_algos.POLICY_LOSS_REGISTRY)
        found = Names(
            estimator if verl_options.assigns_credit(recipe) else None,
            loss if verl_options.defines_loss(recipe) else None,
        )
        if found.estimator:
            core_algos.register_adv_est(found.estimator)(Estimator(recipe))
        if found.loss:
            core_algos.register_policy_loss(found.loss)(PolicyLoss(recipe))
        REGISTERED[name] = found
    return REGISTERED[name]


def settings(expression: str | Recipe) -> dict[str, Any]:
    """verl's options for an expression, which is registered if it isn't yet.

    Raises:
        UserError: The expression needs what verl doesn't give.
    """
    recipe = build(expression)
    names = register(recipe)
    if names.estimator:
        Estimator(recipe).check(())
    if names.loss:
        PolicyLoss(recipe).check()
    return verl_options.options(recipe, names)


@dataclasses.dataclass(frozen=True)
class Estimator:
    """The reward shaping and advantages of a recipe, called as verl calls an estimator."""

    recipe: Recipe

    def check(self, further: Sequence[str]) -> None:
        """Raise UserError if the recipe needs what verl doesn't give."""
        host = dataclasses.replace(CREDIT, columns=CREDIT.columns | set(further))
        check(self.recipe, host, ("rewards", "advantages"))
        verl_options.reject_selection(self.recipe)

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any] | None = None,
        config: Any = None,
        batch: Mapping[str, Tensor] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns [N, T].

        Args:
            token_level_rewards: verl's rewards, usually at the last token [N, T].
            response_mask: 1 on tokens that the policy sampled [N, T].
            index: Id of the prompt of each row (verl's `uid`).
            config: verl's; not read.
            batch: Further tensors of verl's data, for ideas that read tokens or log-probabilities.

        Raises:
            UserError: The recipe needs what isn't given.
        """
        given = dict(batch or {})
        columns = {ours: given[name] for name, ours in BATCH_COLUMNS.items() if name in given}
        self.check(tuple(columns))
        made = _verl_batch(token_level_rewards, response_mask, index, columns)
        unscreened = dataclasses.replace(self.recipe.selection, screens=())
        credited = credit(dataclasses.replace(self.recipe, selection=unscreened), made)
        advantages = credited["advantages"].to(token_level_rewards)
        returns = credited.columns.get("returns", advantages)
        return advantages, returns.to(token_level_rewards)


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The loss of a recipe, called as verl calls a policy loss.

    The KL and entropy terms are left to verl, which adds them itself; that verl's options agree
    with the recipe's numbers is checked at every call.
    """

    recipe: Recipe

    def check(self) -> None:
        """Raise UserError if the loss needs what verl doesn't give."""
        verl_options.reject_whole_losses(self.recipe)
        objective = dataclasses.replace(self.recipe.objective, kl=None, entropy=None)
        check(dataclasses.replace(self.recipe, objective=objective), LOSS, ("objective",))

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The micro-batch's summand of the loss, and metrics.

        Raises:
            UserError: The loss needs what verl doesn't give, or verl's options contradict it.
        """
        self.check()
        verl_options.check_options(self.recipe, loss_agg_mode, config)
        info = dict(getattr(config, "global_batch_info", None) or {})
        mask = response_mask.bool()
        if self.recipe.objective.coupled:
            verl_options.check_whole(self.recipe, len(mask), info)
        columns = {
            "advantages": advantages.expand(mask.shape),
            "logp_old": old_log_prob,
            "coefficients": _coefficients(log_prob, response_mask, loss_agg_mode, info),
        }
        if rollout_is_weights is not None:
            columns["weights"] = rollout_is_weights.expand(mask.shape)
        rewards = log_prob.new_zeros(len(mask))
        batch = _loss_batch(mask, rewards, columns)
        objective = dataclasses.replace(self.recipe.objective, kl=None, entropy=None)
        loss = objective(Evaluation(log_prob), batch)
        means = TokenMeans()
        means.add(dict(loss.metrics), batch.loss_mask)
        return loss.loss, {f"actor/{name}": value for name, value in means.means().items()}


def _coefficients(log_prob: Tensor, mask: Tensor, mode: str, info: Mapping[str, Any]) -> Tensor:
    """verl's aggregation as a weight for each token: the derivative of what is linear anyway."""
    known = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    totals = {name: info[name] for name in known if info.get(name) is not None}
    with torch.enable_grad():
        probe = torch.zeros_like(log_prob).requires_grad_()
        value = core_algos.agg_loss(probe, mask, mode, **totals)
        (found,) = torch.autograd.grad(value, probe)
    return found.detach()


def _verl_batch(
    rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | None,
    columns: Mapping[str, Tensor],
) -> Batch:
    """verl's tensors as a batch; without `index`, every row is a group of its own."""
    own = response_mask.bool()
    places = torch.arange(own.shape[1], device=own.device)
    lengths = ((places + 1) * own).amax(1)
    names = range(len(own)) if index is None else list(index)
    if rewards.masked_fill(last_token(own), 0.0).any():
        columns = {**columns, "token_rewards": rewards}
    return padded_batch(
        own=own,
        inside=places < lengths[:, None],
        group=group_ids(names).to(own.device),
        rewards=rewards.sum(1),
        max_tokens=own.shape[1],
        columns=columns,
    )


def _loss_batch(mask: Tensor, rewards: Tensor, columns: Mapping[str, Tensor]) -> Batch:
    group = torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    return padded_batch(
        own=mask,
        inside=mask,
        group=group,
        rewards=rewards,
        max_tokens=mask.shape[1],
        columns=columns,
    )


def _free_name(name: str, registry: Mapping[str, Callable[..., Any]]) -> str:
    """The name itself, or with a prefix if verl has one of that name."""
    return f"polyopt-{name}" if name in registry else name


for _name in load_catalog():
    register(_name)
