"""The command line: `polyopt train`, `eval`, `recipes`, `show`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from polyopt import __version__
from polyopt.errors import UserError, did_you_mean

EXAMPLES = """examples:
  polyopt train grpo --model embedded --task reasoning_gym:chain_sum
  polyopt train dapo+ktae+greso --model smollm2 --task problems.jsonl --reward math --lora 16
  polyopt show dapo+ktae --set objective.clip_high=0.3
  polyopt eval --model runs/my-run/model --task reasoning_gym:chain_sum --samples 8
"""


class _Parser(argparse.ArgumentParser):
    """argparse with nearest names for a mistyped option or command."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            message += f"; {did_you_mean(word, self._options())}"
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _options(self) -> set[str]:
        """Every option of this parser and of its commands."""
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    found |= set(command._option_string_actions)
        return found


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; the reference in `docs/cli.md` is generated from it."""
    parser = _Parser(
        prog="polyopt",
        description="Improve a language model with published ideas that snap together.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"polyopt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _train_parser(commands)
    _eval_parser(commands)
    recipes = commands.add_parser("recipes", help="list the ideas of the catalog")
    recipes.add_argument("filter", nargs="?", help="only ideas whose name or summary has this word")
    show = commands.add_parser("show", help="print what an expression resolves to")
    show.add_argument("expression", help="ideas joined by +, such as dapo+ktae")
    _add_set(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    demo = commands.add_parser("demo", help="improve the embedded model, before and after")
    demo.add_argument("--seed", type=int, default=0, help="seed of the run (default 0)")
    demo.add_argument("--run", type=Path, help="run folder (default: a new one under runs/)")
    report = commands.add_parser("report", help="write a run's report.html anew")
    report.add_argument("run", type=Path, help="run folder")
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def _train_parser(commands: Any) -> None:
    train = commands.add_parser("train", help="train a model on a task")
    train.add_argument("expression", nargs="?", help="ideas joined by +, such as dapo+ktae")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")
    train.add_argument("--run", type=Path, help="run folder (default: a new one under runs/)")
    train.add_argument("--steps", type=int, help="training steps (default 100)")
    train.add_argument("--prompts", type=int, metavar="N", help="prompts per step")
    train.add_argument("--rollouts", type=int, metavar="N", help="rollouts per prompt")
    train.add_argument("--max-tokens", type=int, metavar="N", help="completion limit in tokens")
    train.add_argument("--temperature", type=float, help="sampling temperature (above 0)")
    train.add_argument("--lr", type=float, help="learning rate")
    train.add_argument("--micro-tokens", type=int, help="tokens through the model at once")
    _add_set(train)
    train.add_argument("--seed", type=int, help="seed of every random draw of the run (default 0)")
    _add_model(train)
    train.add_argument("--lora", type=int, metavar="RANK", help="train a LoRA adapter of this rank")
    train.add_argument("--adapter", type=Path, help="LoRA adapter to go on training")
    train.add_argument("--teacher", help="frozen model to learn from, for ideas that need one")
    train.add_argument("--second", help="second model that the reference is made of (salsa)")
    train.add_argument(
        "--gradient-checkpointing", action="store_true", help="less memory, more computation"
    )
    _add_task(train)
    train.add_argument("--eval-every", type=int, metavar="N", help="steps between evaluations")
    train.add_argument("--eval-samples", type=int, metavar="K", help="completions per problem")
    train.add_argument(
        "--eval-limit", type=int, metavar="N", help="most held-out problems; 0: none"
    )
    train.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="steps between checkpoints"
    )
    train.add_argument("--keep", type=int, metavar="N", help="checkpoints to keep (default 2)")
    train.add_argument("--log-rollouts-every", type=int, metavar="N", help="steps between logs")
    train.add_argument("--quiet", action="store_true", help="print only warnings and the result")


def _eval_parser(commands: Any) -> None:
    evaluate = commands.add_parser("eval", help="evaluate a model on a task's held-out problems")
    _add_model(evaluate)
    _add_task(evaluate)
    evaluate.add_argument("--samples", type=int, default=1, help="completions per problem")
    evaluate.add_argument("--temperature", type=float, default=1.0, help="0 is greedy decoding")
    evaluate.add_argument(
        "--top-p", type=float, default=1.0, help="nucleus sampling (default: off)"
    )
    evaluate.add_argument(
        "--top-k", type=int, default=0, help="k most likely tokens (default: all)"
    )
    evaluate.add_argument("--max-tokens", type=int, default=256, help="completion limit in tokens")
    evaluate.add_argument("--limit", type=int, help="most held-out problems")
    evaluate.add_argument("--seed", type=int, default=0, help="seed of the samples (default 0)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument("--save", type=Path, metavar="FILE", help="write completions as JSONL")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        dest="assignments",
        help="set any value of the recipe, such as objective.clip_high=0.3 (repeatable)",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        help="Hugging Face folder or hub name, a .gguf file, smollm2, or embedded",
    )
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:1, ... (default auto)")
    parser.add_argument("--dtype", help="float32 or bfloat16 (default float32)")
    parser.add_argument("--chat-template", help="auto, none, or the path of a template")


def _add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        help="reasoning_gym:NAME, a .jsonl/.json/.csv/.parquet file, a data set's hub name, or "
        "file.py:object",
    )
    parser.add_argument(
        "--task-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="options",
        help="option of a generated task, such as max_terms=4 (repeatable)",
    )
    parser.add_argument(
        "--reward",
        action="append",
        default=[],
        dest="rewards",
        metavar="[WEIGHT*]REWARD",
        help="exact, math, number, format, regex:..., file.py:function, ... (repeatable)",
    )
    parser.add_argument("--prompt-column", help="column of the prompts")
    parser.add_argument("--answer-column", help="column of the answers")
    parser.add_argument("--split", help="split of a hub data set")
    parser.add_argument("--heldout", help="file (or split) of held-out problems")
    parser.add_argument("--heldout-size", type=int, metavar="N", help="held-out problems")
    parser.add_argument("--system", help="system message before every prompt")
    parser.add_argument("--task-seed", type=int, help="seed of generated problems")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code (0 fine, 2 user error, 130 interrupted)."""
    options = build_parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "train": _train,
        "eval": _eval,
        "recipes": _recipes,
        "show": _show,
        "demo": _demo,
        "report": _report,
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


def _train_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `polyopt.train` from the command line."""
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
        "run",
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
    for name in ("model", "task", "recipe"):
        if str(arguments[name]).startswith("<"):
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
    from polyopt.engines.local import LocalEngine
    from polyopt.engines.protocol import Distribution
    from polyopt.evaluation import EvalSettings, evaluate
    from polyopt.models.loading import load_policy
    from polyopt.run_folder import json_line
    from polyopt.tasks.load import load_task

    task = load_task(options.task, **_task_options(options))
    policy = load_policy(options.model, **_given(_model_options(options)))
    engine = LocalEngine(policy.model, policy.decode)
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
    print(write_report(options.run))
    return 0


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
