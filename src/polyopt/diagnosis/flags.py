"""The flag to try against a sign: words, or a multiple of the run's own number."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.diagnosis.evidence import Evidence


@dataclass(frozen=True)
class Scaled:
    """A flag whose value is a multiple of the one that the run had.

    Attributes:
        option: What is written before the value: `--lr `, or `--set PATH=`.
        slot: Where the number is in `run.json`.
        number: Its name there.
        factor: What it is multiplied by.
        otherwise: The value where the run's is unknown or 0.
    """

    option: str
    slot: str
    number: str
    factor: float
    otherwise: float

    def value(self, run: Evidence | None) -> float:
        """The value to try."""
        known = run.number(self.number, self.slot) if run is not None else None
        if not known:
            return self.otherwise
        return max(round(known * self.factor), 1) if isinstance(known, int) else known * self.factor

    def text(self, run: Evidence | None = None) -> str:
        """As typed on the command line."""
        value = self.value(run)
        return f"{self.option}{value if isinstance(value, int) else format(value, '.3g')}"


Flag = str | Scaled


def flag_text(flag: Flag, run: Evidence | None = None) -> str:
    """A flag as typed on the command line, with the run's own numbers where they are known."""
    return flag if isinstance(flag, str) else flag.text(run)


LOWER_RATE = Scaled("--lr ", "updates.optimizer", "lr", 1 / 3, 3e-7)
HIGHER_RATE = Scaled("--lr ", "updates.optimizer", "lr", 10, 1e-6)
MORE_ROLLOUTS = Scaled("--rollouts ", "rollouts", "per_prompt", 2, 16)
MORE_TOKENS = Scaled("--max-tokens ", "rollouts", "max_tokens", 2, 1024)
FEWER_TOKENS = Scaled("--max-tokens ", "rollouts", "max_tokens", 0.5, 512)
CONSTANT_LENGTH = Scaled("--set objective.aggregation.length=", "rollouts", "max_tokens", 1, 1024)
EARLIER_CLIPPING = Scaled(
    "--set updates.optimizer.max_grad_norm=", "updates.optimizer", "max_grad_norm", 0.5, 0.5
)
MORE_PENALTY = Scaled("--set objective.kl.coefficient=", "objective.kl", "coefficient", 3, 0.01)
FEWER_PASSES = "--set updates.rule.epochs=1"
WIDER_ABOVE = "--set objective.clip_high=0.28"
WIDER_BELOW = "--set objective.clip_low=0.28"
