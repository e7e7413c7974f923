"""`train`: a whole run, from model and task to final model and report."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from polyopt import __version__, checkpoint
from polyopt.diagnosis import read_evidence
from polyopt.diagnosis.live import LiveDoctor
from polyopt.engines.choice import engine_from
from polyopt.engines.protocol import Engine
from polyopt.errors import UserError
from polyopt.evaluation import EvalSettings, evaluate
from polyopt.ideas import build
from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy
from polyopt.pipeline import batch_arithmetic, describe
from polyopt.recipe import Recipe
from polyopt.report.html import write_report
from polyopt.report.live import LiveDisplay, print_before_after
from polyopt.rollout_log import logged_rollouts
from polyopt.run_folder import RunFolder, new_run_path, read_rows
from polyopt.seeding import derive_seed, random_state, set_random_state
from polyopt.tasks.load import load_task
from polyopt.tasks.overlap import prompt_counts
from polyopt.tasks.task import Task
from polyopt.trainer import Trainer
from polyopt.writers.choice import check_services, writers_for
from polyopt.writers.protocol import MetricWriter, RunStart
from polyopt.writers.several import Writers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class RunSettings:
    """What a run does besides training steps.

    Attributes:
        steps: Training steps.
        seed: Every random draw of the run derives from it.
        eval_every: Steps between held-out evaluations; 0 evaluates only before and after.
        eval_samples: Completions per held-out prompt.
        eval_limit: Most held-out prompts; None takes all, 0 turns evaluation off.
        checkpoint_every: Steps between checkpoints; 0 writes one at the end only.
        keep: Newest checkpoints to keep.
        log_rollouts_every: Steps between logged groups of rollouts.
        log_groups: Groups logged each time.
        log: Services that get the metrics too: `"wandb"`, `"trackio"`.
        quiet: Print nothing but warnings and the result.
    """

    steps: int = 100
    seed: int = 0
    eval_every: int = 0
    eval_samples: int = 1
    eval_limit: int | None = None
    checkpoint_every: int = 25
    keep: int = 2
    log_rollouts_every: int = 10
    log_groups: int = 4
    log: Sequence[str] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("keep", 1), ("eval_samples", 1), ("eval_every", 0)):
            if getattr(self, name) < least:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag} is {getattr(self, name)}: it must be at least {least}.")
        check_services(self.log)


@dataclass(frozen=True)
class RunResult:
    """What a run ended with.

    Attributes:
        path: The run folder.
        before: Held-out metrics before training; empty if evaluation was off.
        after: Held-out metrics after it.
        policy: The trained policy.
        interrupted: The run was stopped by Ctrl-C and can be resumed.
    """

    path: Path
    before: dict[str, float]
    after: dict[str, float]
    policy: Policy
    interrupted: bool = False


def train(
    model: str | PreTrainedModel | Policy,
    task: str | Task | Sequence[Mapping[str, Any]],
    recipe: str | Recipe = "grpo",
    *,
    steps: int = 100,
    run: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, str | object] | None = None,
    model_options: Mapping[str, Any] | None = None,
    task_options: Mapping[str, Any] | None = None,
    engine: str | Engine | None = None,
    teacher: str | Policy | None = None,
    second: str | Policy | None = None,
    writers: Sequence[MetricWriter] = (),
    **settings: Any,
) -> RunResult:
    """Improve a language model on a task with a sum of ideas.

    Args:
        model: A Hugging Face folder or hub name, a GGUF file, `"smollm2"`, `"embedded"`, or a model
            or policy in memory.
        task: `"reasoning_gym:NAME"`, a data file or data set, `"file.py:object"`, a `Task`, or rows
            with `prompt` and `answer`.
        recipe: An expression such as `"dapo+ktae"`, or a recipe.
        steps: Training steps.
        run: Run folder; by default a new one under `runs/`.
        resume: Continue the run in that folder.
        overrides: Values of the recipe by path: `{"objective.clip_high": 0.3}`.
        model_options: Keyword arguments for `load_policy` (`lora`, `dtype`, `device`, ...).
        task_options: Keyword arguments for `load_task` (`rewards`, `heldout`, ...).
        engine: Samples completions; by default in this process. Or its name: `"local"`, `"vllm"`,
            `"http://host:port/v1#model"` (see `polyopt.engines.choice.engine_from`).
        teacher: A frozen model with the same vocabulary, for ideas that learn from one.
        second: A second model of the same architecture, for ideas that make the reference of both.
        writers: Writers of your own that get every metric (see `polyopt.writers.protocol`).
        settings: Fields of `RunSettings`.

    Raises:
        UserError: Something in the arguments can't be used; the message says what and why.
    """
    chosen = RunSettings(steps=steps, **settings)
    built = build(recipe, overrides)
    path = Path(run) if run is not None else new_run_path(built.name)
    loaded_task = load_task(task, **(task_options or {}))
    with RunFolder(path).open(resume=resume) as folder:
        policy = model if isinstance(model, Policy) else load_policy(model, **(model_options or {}))
        trainer = Trainer(
            policy,
            loaded_task,
            built,
            steps=steps,
            seed=chosen.seed,
            engine=engine_from(engine, policy) if isinstance(engine, str) else engine,
            teacher=load_policy(teacher) if isinstance(teacher, str) else teacher,
            second=load_policy(second) if isinstance(second, str) else second,
        )
        description = {
            "polyopt": __version__,
            "expression": built.name,
            "model": model if isinstance(model, str) else type(model).__name__,
            "task": loaded_task.name,
            "seed": chosen.seed,
            "steps": steps,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "arguments": _plain(
                {
                    "model": model,
                    "task": task,
                    "recipe": recipe,
                    "overrides": dict(overrides or {}),
                    "model_options": dict(model_options or {}),
                    "task_options": dict(task_options or {}),
                    "teacher": teacher,
                    "second": second,
                    "engine": engine,
                    **dataclasses.asdict(chosen),
                }
            ),
            "pipeline": _plain(describe(built)),
            "batch": batch_arithmetic(built),
            "prompts": prompt_counts(loaded_task.train, loaded_task.heldout),
        }
        listeners = [*writers_for(chosen.log), *writers]
        return Run(trainer, folder, chosen, description, listeners).go(resume=resume)


@dataclass
class Run:
    """A training run under way: steps, logs, checkpoints, evaluations and the end."""

    trainer: Trainer
    folder: RunFolder
    settings: RunSettings
    description: Mapping[str, Any]
    listeners: Sequence[MetricWriter] = ()
    before: dict[str, float] = field(default_factory=dict)
    _stop: bool = False
    _doctor: LiveDoctor = field(init=False)
    _writers: Writers = field(init=False)

    def __post_init__(self) -> None:
        self._doctor = LiveDoctor(self.description)

    def go(self, *, resume: bool) -> RunResult:
        """Train to the last step, or until Ctrl-C."""
        title = f"{self.description['expression']} on {self.description['task']}"
        display = LiveDisplay(self.settings.steps, title=title, quiet=self.settings.quiet)
        self._writers = Writers(self.listeners, self._warner(display))
        kept = -1
        if resume:
            kept = self._restore(display.warn)
            display.step = self.trainer.done
        else:
            self.folder.write_json("run.json", self.description)
        display.print_pipeline(self.description["pipeline"])
        display.print_batch(self.description["batch"])
        self._writers.start(RunStart(self.folder.path, self.description, kept, resume))
        try:
            return self._train(display)
        finally:
            self._writers.close(finished=self._finished)

    def _train(self, display: LiveDisplay) -> RunResult:
        """Evaluate, train, save, evaluate."""
        if not self.before:
            self.before = self._evaluate("before")
        with _interruptible(self._interrupt), display:
            while not self._finished and not self._stop:
                self._step(display)
        interrupted = not self._finished
        self._checkpoint()
        return self._end(display, interrupted)

    @property
    def _finished(self) -> bool:
        return self.trainer.done >= self.settings.steps

    def _warner(self, display: LiveDisplay) -> Callable[[str], None]:
        """Says a warning in the display; a quiet run says it on standard error."""
        if not self.settings.quiet:
            return display.warn
        return lambda text: print(f"warning: {text}", file=sys.stderr)

    def _step(self, display: LiveDisplay) -> None:
        result = self.trainer.step()
        step = self.trainer.done
        self.folder.append("metrics.jsonl", {"step": step, **result.metrics})
        self._writers.step(step, result.metrics)
        every = self.settings.log_rollouts_every
        if every and (step == 1 or step % every == 0):
            rows = logged_rollouts(result, self.trainer.policy, step, self.settings.log_groups)
            self._log_rollouts(f"step-{step:06d}", rows)
        display.update(step, result.metrics)
        for warning in self._doctor.warnings(step, result.metrics):
            display.warn(warning)
        last = step == self.settings.steps
        if self.settings.eval_every and step % self.settings.eval_every == 0 and not last:
            self._evaluate(f"step-{step}")
        if self.settings.checkpoint_every and step % self.settings.checkpoint_every == 0:
            self._checkpoint()

    def _evaluate(self, phase: str) -> dict[str, float]:
        """Held-out metrics, logged; empty where evaluation is off or the task can't be judged."""
        task, recipe = self.trainer.task, self.trainer.recipe
        if self.settings.eval_limit == 0 or not task.heldout or task.accuracy_term is None:
            return {}
        settings = EvalSettings(
            samples=self.settings.eval_samples,
            distribution=recipe.rollouts.distribution,
            max_tokens=recipe.rollouts.max_tokens,
            seed=derive_seed(self.settings.seed, "heldout"),
            limit=self.settings.eval_limit,
        )
        with self.trainer.clock("evaluate"):
            result = evaluate(self.trainer.policy, self.trainer.engine, task, settings)
        step = self.trainer.done
        row = {"step": step, "phase": phase, **result.metrics}
        self.folder.append("evals.jsonl", row)
        self._doctor.saw_evaluation(row)
        self._writers.evaluation(step, result.metrics)
        if phase in ("before", "after"):
            rows = [{"step": step, "phase": phase, **row} for row in result.rows[:64]]
            self._log_rollouts(phase, rows)
        return result.metrics

    def _log_rollouts(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.folder.write_rollouts(name, rows)
        self._doctor.saw_rollouts(rows)

    def _checkpoint(self) -> None:
        done = self.trainer.done
        newest = next(iter(checkpoint.available(self.folder.checkpoints)), None)
        if newest is not None and checkpoint.step_of(newest) == done:
            return

        def write(folder: Path) -> None:
            self.trainer.policy.save(folder / "model")
            state = {
                "policy": self.trainer.policy.state_dict(),
                "trainer": self.trainer.state_dict(),
                "random": random_state(),
                "before": self.before,
            }
            torch.save(state, folder / "state.pt")

        with self.trainer.clock("checkpoint"):
            checkpoint.save(self.folder.checkpoints, done, write, self.settings.keep)

    def _restore(self, warn: Callable[[str], None]) -> int:
        """Load the newest sound checkpoint and forget what was logged after it.

        Gives the last step whose logs stand; -1 if there was no checkpoint.
        """
        found = checkpoint.newest_sound(self.folder.checkpoints, warn)
        kept = -1
        if found is not None:
            # Our own files, verified against their manifest; parts may hold plain Python objects.
            state = torch.load(found / "state.pt", map_location="cpu", weights_only=False)
            self.trainer.policy.load_state_dict(state["policy"])
            self.trainer.load_state_dict(state["trainer"])
            set_random_state(state["random"])
            self.before = state["before"]
            kept = self.trainer.done
        self.folder.forget_after(kept)
        self._doctor.remember(read_evidence(self.folder.path))
        return kept

    def _end(self, display: LiveDisplay, interrupted: bool) -> RunResult:
        after: dict[str, float] = {}
        path = self.folder.path
        if not interrupted:
            after = self._last_evaluation() or self._evaluate("after")
            for warning in self._doctor.last_words():
                display.warn(warning)
            self.trainer.policy.save(self.folder.model)
        report = write_report(path)
        if interrupted:
            print(
                f"stopped after step {self.trainer.done} of {self.settings.steps}, all saved; "
                f"continue with: polyopt train --resume {path}"
            )
        else:
            if after:
                print_before_after(self.before, after)
            print(f"model   {self.folder.model}")
        print(f"run     {path}\nreport  {report}", flush=True)
        return RunResult(path, self.before, after, self.trainer.policy, interrupted)

    def _last_evaluation(self) -> dict[str, float]:
        """The evaluation after the last step, if a run that had ended is resumed."""
        path = self.folder.path / "evals.jsonl"
        rows = read_rows(path) if path.is_file() else []
        return next((row for row in rows if row.get("phase") == "after"), {})

    def _interrupt(self) -> bool:
        """Note a Ctrl-C; True if it was the second one."""
        again, self._stop = self._stop, True
        return again


class _interruptible:
    """While active, the first Ctrl-C asks for a stop after the current step, the second stops."""

    def __init__(self, interrupt: Callable[[], bool]) -> None:
        self.interrupt = interrupt
        self.previous: Any = None

    def __enter__(self) -> None:
        try:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        except ValueError:
            self.previous = None  # not the main thread: leave signals alone

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.interrupt():
            raise KeyboardInterrupt
        print("\nfinishing this step, then saving (Ctrl-C again to stop at once)", flush=True)

    def __exit__(self, *exception: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: objects that JSON doesn't know become their type's name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    return f"<{type(value).__name__}>"
