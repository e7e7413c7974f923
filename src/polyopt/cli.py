"""The command line: `polyopt train`, `compare`, `eval`, `recipes`, `show`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from polyopt.command_line import build_parser
from polyopt.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 is fine, 1 a serious finding of the doctor or a failed cell of a comparison, 2 a user error,
    130 interrupted.
    """
    options = build_parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "train": _train,
        "compare": _compare,
        "eval": _eval,
        "recipes": _recipes,
        "show": _show,
        "demo": _demo,
        "report": _report,
        "watch": _watch,
        "doctor": _doctor,
    }
    try:
        return commands[options.command](options)
    except UserError as error:
        return _fail(str(error), options.debug)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return _fail(
                f"out of memory ({str(error).splitlines()[0] if str(error) else 'MemoryError'}). "
                "Lower --micro-tokens first (it changes no result), then --max-tokens, --rollouts "
                "or --prompts; --lora 16 and --gradient-checkpointing also need less.",
                options.debug,
            )
        raise


def _fail(message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"polyopt: error: {message}", file=sys.stderr)
    return 2


def _train(options: argparse.Namespace) -> int:
    from polyopt.ideas import build

    if options.resume is not None:
        arguments = _resumed_arguments(options)
    else:
        for name in ("expression", "model", "task"):
            if getattr(options, name) is None:
                flag = "an expression such as grpo" if name == "expression" else f"--{name}"
                raise UserError(f"`polyopt train` needs {flag} (see polyopt train --help).")
        arguments = _train_arguments(options)
    build(arguments["recipe"], arguments["overrides"])  # recipe errors before heavy imports
    from polyopt.training import train

    result = train(**arguments)
    return 130 if result.interrupted else 0


def _compare(options: argparse.Namespace) -> int:
    from polyopt.comparison.command import run_command

    return run_command(options, _train_arguments(options))


def _train_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `polyopt.train` from the command line."""
    from polyopt.writers.choice import check_services

    check_services(options.log or ())
    shortcuts = {
        "prompts": "prompts.per_step",
        "rollouts": "rollouts.per_prompt",
        "max_tokens": "rollouts.max_tokens",
        "temperature": "rollouts.temperature",
        "lr": "updates.optimizer.lr",
        "micro_tokens": "updates.micro_tokens",
    }
    overrides = {path: getattr(options, name) for name, path in shortcuts.items()}
    settings = (
        "steps",
        "seed",
        "eval_every",
        "eval_samples",
        "eval_limit",
        "checkpoint_every",
        "keep",
        "log_rollouts_every",
        "log",
        "run",
        "engine",
        "teacher",
        "second",
    )
    return {
        "model": options.model,
        "task": options.task,
        "recipe": options.expression,
        "overrides": _given(overrides) | _assignments(options.assignments),
        "model_options": _given(
            _model_options(options) | {"lora": options.lora, "adapter": options.adapter}
        )
        | ({"gradient_checkpointing": True} if options.gradient_checkpointing else {}),
        "task_options": _task_options(options),
        "quiet": options.quiet,
        **_given({name: getattr(options, name) for name in settings}),
    }


def _resumed_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the run to resume; only `--steps` may be given anew."""
    path = options.resume / "run.json"
    if not path.is_file():
        raise UserError(f"{options.resume} holds no run to resume (no run.json).")
    arguments: dict[str, Any] = json.loads(path.read_text())["arguments"]
    for name in ("model", "task", "recipe", "engine"):
        if str(arguments.get(name)).startswith("<"):
            raise UserError(
                f"the run in {options.resume} was started from Python with a {name} in memory "
                f"({arguments[name]}): resume it there, with polyopt.train(..., resume=True)."
            )
    if options.steps is not None:
        arguments["steps"] = options.steps
    return arguments | {"run": options.resume, "resume": True, "quiet": options.quiet}


def _eval(options: argparse.Namespace) -> int:
    for name in ("model", "task"):
        if getattr(options, name) is None:
            raise UserError(f"`polyopt eval` needs --{name} (see polyopt eval --help).")
    from polyopt.distribution import Distribution
    from polyopt.engines.choice import engine_from
    from polyopt.evaluation import EvalSettings, evaluate
    from polyopt.models.loading import load_policy
    from polyopt.run_folder import json_line
    from polyopt.tasks.load import load_task

    task = load_task(options.task, **_task_options(options))
    policy = load_policy(options.model, **_given(_model_options(options)))
    engine = engine_from(options.engine or "local", policy)
    engine.sync(policy)
    distribution = Distribution(options.temperature, options.top_k, options.top_p)
    settings = EvalSettings(
        options.samples, distribution, options.max_tokens, options.seed, options.limit
    )
    result = evaluate(policy, engine, task, settings)
    if options.save is not None:
        options.save.write_text("".join(json_line(row) for row in result.rows))
    print(json.dumps(result.metrics) if options.json else eval_table(result.metrics))
    return 0


def eval_table(metrics: dict[str, float]) -> str:
    """Metrics as lines of `name value [low, high]`."""
    lines = []
    for name, value in metrics.items():
        if name.endswith(("/low", "/high")):
            continue
        text = f"{name:14} {value:8.3f}"
        if f"{name}/low" in metrics:
            text += f"   [{metrics[f'{name}/low']:.3f}, {metrics[f'{name}/high']:.3f}]"
        lines.append(text)
    return "\n".join(lines)


def _recipes(options: argparse.Namespace) -> int:
    from polyopt.ideas import load_catalog

    word = (options.filter or "").lower()
    found = [i for i in load_catalog().values() if word in f"{i.name} {i.summary}".lower()]
    if not found:
        raise UserError(f"no idea has {options.filter!r} in its name or summary.")
    width = max(len(idea.name) for idea in found)
    for idea in sorted(found, key=lambda idea: idea.name):
        print(f"{idea.name:{width}}  {idea.summary}  [{idea.paper}]")
    return 0


def _show(options: argparse.Namespace) -> int:
    from polyopt.ideas import build
    from polyopt.pipeline import batch_arithmetic, describe

    recipe = build(options.expression, _assignments(options.assignments))
    if options.json:
        print(
            json.dumps(
                {"pipeline": describe(recipe), "batch": batch_arithmetic(recipe)}, default=str
            )
        )
        return 0
    from polyopt.report.live import LiveDisplay

    display = LiveDisplay(0)
    display.print_pipeline(describe(recipe))
    display.print_batch(batch_arithmetic(recipe))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from polyopt.demo import demo

    return 130 if demo(seed=options.seed, run=options.run).interrupted else 0


def _report(options: argparse.Namespace) -> int:
    from polyopt.report.html import write_report

    if not (options.run / "run.json").is_file():
        raise UserError(f"{options.run} is no run folder (no run.json).")
    if options.rollout_megabytes <= 0:
        raise UserError(
            f"--rollout-megabytes is {options.rollout_megabytes:g}: it must be above 0."
        )
    print(write_report(options.run, round(1e6 * options.rollout_megabytes)))
    return 0


def _watch(options: argparse.Namespace) -> int:
    from polyopt.watching.command import watch

    watch(
        options.run,
        host=options.host,
        port=options.port,
        every=options.every,
        browser=options.open,
    )
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from polyopt.diagnosis.doctor import doctor

    return doctor(options.run, as_json=options.json)


def _assignments(pairs: Sequence[str]) -> dict[str, str]:
    """`PATH=VALUE` arguments as a mapping."""
    found = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise UserError(
                f"--set {pair}: write it as PATH=VALUE, such as objective.clip_high=0.3"
            )
        found[path.strip()] = value
    return found


def _model_options(options: argparse.Namespace) -> dict[str, Any]:
    names = ("device", "dtype", "chat_template")
    return {name: getattr(options, name) for name in names}


def _task_options(options: argparse.Namespace) -> dict[str, Any]:
    names = ("prompt_column", "answer_column", "split", "heldout", "heldout_size", "system")
    found = _given({name: getattr(options, name) for name in names} | {"seed": options.task_seed})
    if options.options:
        found["options"] = _assignments(options.options)
    if options.rewards:
        found["rewards"] = options.rewards
    return found


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were given."""
    return {name: value for name, value in options.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
