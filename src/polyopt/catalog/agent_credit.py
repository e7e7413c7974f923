"""Credit in agents: steps, turns, tool calls, teams and programs."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.module_calls import ModuleCallZScore
from polyopt.advantages.scopes import (
    AgentTurnZScore,
    OwnVariant,
)
from polyopt.advantages.steps import AnchorStates, EpisodeByStep, SharedSteps
from polyopt.advantages.tool_calls import EarlyCall
from polyopt.advantages.turns import TurnCredit
from polyopt.catalog.token_credit import READ, clipped, like_grpo
from polyopt.ideas import idea
from polyopt.recipe import Recipe
from polyopt.rewards.team import TeamReward
from polyopt.selection.module_calls import aligned_calls


@idea(
    title="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    paper="arXiv 2510.20022",
    certainty="reconstruction from the abstract; merge rule and history length uncertain",
)
def salt(recipe: Recipe) -> Recipe:
    """Steps that several rollouts share get the mean of their credit. Needs environment steps."""
    return recipe.append("advantages.shaping", SharedSteps()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(
    title="Group-in-Group Policy Optimization for LLM Agent Training",
    paper="arXiv 2505.10978",
    certainty="official code read in a fork, its functions run",
)
def gigpo(recipe: Recipe) -> Recipe:
    """Also compares the steps that were taken from one state. Needs environment steps."""
    return clipped(
        recipe.append("advantages.shaping", AnchorStates()).suggest(
            "advantages.estimator", EpisodeByStep()
        )
    )


@idea(
    title="Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
    paper="arXiv 2505.11821",
    certainty=READ,
)
def turn_level_credit(recipe: Recipe) -> Recipe:
    """MT-GRPO: the tool call's reward for the turn that called, the outcome's for all turns."""
    return clipped(recipe.claim("advantages.estimator", TurnCredit()))


@idea(
    title="Stronger Together: On-Policy Reinforcement Learning for Collaborative LLMs",
    paper="arXiv 2510.11062",
    certainty="official code read; its grouping run; the reward mix from memory",
)
def at_grpo(recipe: Recipe) -> Recipe:
    """Groups are the actions of one agent at one turn; the team's reward joins the agent's."""
    return clipped(
        recipe.claim("advantages.estimator", AgentTurnZScore()).append(
            "rewards.shaping", TeamReward()
        )
    )


@idea(
    title="Multi-module GRPO: Composing Policy Gradients and Prompt Optimization for Language "
    "Model Programs",
    paper="arXiv 2508.04660",
    certainty="official code read; grouping and credit re-implemented",
)
def mmgrpo(recipe: Recipe) -> Recipe:
    """Groups are the k-th calls of one module in the rollouts of a program."""
    return like_grpo(
        recipe.claim("advantages.estimator", ModuleCallZScore()).append(
            "selection.screens", aligned_calls
        )
    )


@idea(
    title="R1-ShareVL: Incentivizing Reasoning Capability of MLLMs via Share-GRPO",
    paper="arXiv 2505.16673",
    certainty=READ,
)
def share_grpo(recipe: Recipe) -> Recipe:
    """Responses train under all variants of a question; compared across and within variants."""
    return clipped(
        recipe.append("advantages.shaping", OwnVariant()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


@idea(
    title="Understanding Tool-Integrated Reasoning",
    paper="arXiv 2508.19201",
    certainty="paper's equation read; delta and k from a third party's recipe that cites it",
)
def aspo_tool(recipe: Recipe) -> Recipe:
    """More credit for right rollouts that call a tool earlier than the group's other right ones."""
    return recipe.append("advantages.shaping", EarlyCall()).suggest(
        "advantages.estimator", GroupZScore()
    )
