"""Distillation on the policy's own rollouts: a teacher in the place of the reference policy."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.batch import Batch
from polyopt.divergences import k2, k3
from polyopt.objectives.protocol import Evaluation, TokenLoss
from polyopt.parts import part


@part("objective.kl", needs={"logp_teacher", "teacher_weight"})
@dataclass(frozen=True)
class TeacherKL:
    """coefficient * teacher_weight * (logp - logp_teacher)^2 / 2: pulls towards a teacher.

    Its expected gradient on the policy's own samples is that of KL(pi || teacher).

    Columns: `logp_teacher` [N, T], the frozen teacher's log-probability of each token (same
    tokenizer), and `teacher_weight` [N] (`AnnealedTeacher`). Tokens that the teacher finds
    impossible are held at `least`, or the square would blow up.

    KDRL, arXiv 2506.02208.

    Attributes:
        coefficient: A further factor.
        least: Lowest log-probability that the teacher is taken to give, in nats.
    """

    coefficient: float = 1.0
    least: float = -30.0

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the divergence from the teacher."""
        teacher = batch["logp_teacher"].clamp(min=self.least)
        weight = batch["teacher_weight"][:, None]
        value = weight * k2(evaluation.logp, teacher)
        return TokenLoss(value, {"kl_teacher": k3(evaluation.logp, teacher)})
