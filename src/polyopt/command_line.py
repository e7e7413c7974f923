"""The words of the command line: commands, options and their help."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from polyopt import __version__
from polyopt.errors import did_you_mean

EXAMPLES = """examples:
  polyopt train grpo --model embedded --task reasoning_gym:chain_sum --max-tokens 64
  polyopt train dapo+ktae+greso --model smollm2 --task problems.jsonl --reward math --lora 16
  polyopt compare grpo dapo grpo+ktae --model smollm2 --task problems.jsonl --reward math
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
    _compare_parser(commands)
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
    report.add_argument(
        "--rollout-megabytes",
        type=float,
        default=5.0,
        help="most megabytes of rollouts in the page; more takes longer to open (default 5)",
    )
    _watch_parser(commands)
    doctor = commands.add_parser(
        "doctor", help="name what is wrong with a run; exits with 1 if something serious is"
    )
    doctor.add_argument("run", type=Path, help="run folder")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def _train_parser(commands: Any) -> None:
    train = commands.add_parser("train", help="train a model on a task")
    train.add_argument("expression", nargs="?", help="ideas joined by +, such as dapo+ktae")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")
    train.add_argument("--run", type=Path, help="run folder (default: a new one under runs/)")
    train.add_argument("--seed", type=int, help="seed of every random draw of the run (default 0)")
    _add_training(train)
    train.add_argument("--quiet", action="store_true", help="print only warnings and the result")


def _compare_parser(commands: Any) -> None:
    compare = commands.add_parser("compare", help="train sums of ideas with several seeds, compare")
    compare.add_argument(
        "expressions", nargs="*", metavar="EXPRESSION", help="sums of ideas, such as grpo dapo+ktae"
    )
    compare.add_argument(
        "--runs", nargs="+", type=Path, metavar="RUN", help="compare these finished runs instead"
    )
    compare.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds (default 5)")
    compare.add_argument("--seed", type=int, help="the first seed (default 0)")
    compare.add_argument(
        "--jobs", type=int, metavar="N", help="runs at once (default: cores; with a GPU 1)"
    )
    compare.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where runs and page go (default under runs/)"
    )
    compare.set_defaults(expression=None, run=None, quiet=True)
    _add_training(compare, several=True)


def _add_training(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Options of a training run that `train` and `compare` share."""
    parser.add_argument("--steps", type=int, help="training steps (default 100)")
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts per step")
    parser.add_argument("--rollouts", type=int, metavar="N", help="rollouts per prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="completion limit in tokens")
    parser.add_argument("--temperature", type=float, help="sampling temperature (above 0)")
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--micro-tokens", type=int, help="tokens through the model at once")
    _add_set(parser)
    _add_model(parser)
    parser.add_argument(
        "--lora", type=int, metavar="RANK", help="train a LoRA adapter of this rank"
    )
    parser.add_argument("--adapter", type=Path, help="LoRA adapter to go on training")
    parser.add_argument("--teacher", help="frozen model to learn from, for ideas that need one")
    parser.add_argument("--second", help="second model that the reference is made of (salsa)")
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="less memory, more computation"
    )
    _add_task(parser, several=several)
    parser.add_argument("--eval-every", type=int, metavar="N", help="steps between evaluations")
    parser.add_argument("--eval-samples", type=int, metavar="K", help="completions per problem")
    parser.add_argument(
        "--eval-limit", type=int, metavar="N", help="most held-out problems; 0: none"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="steps between checkpoints"
    )
    parser.add_argument("--keep", type=int, metavar="N", help="checkpoints to keep (default 2)")
    parser.add_argument("--log-rollouts-every", type=int, metavar="N", help="steps between logs")
    parser.add_argument(
        "--log",
        action="append",
        metavar="SERVICE",
        help="send the metrics to wandb or trackio too (repeatable); TensorBoard files are always "
        "written",
    )


def _watch_parser(commands: Any) -> None:
    watch = commands.add_parser("watch", help="serve a run's report page while the run goes on")
    watch.add_argument("run", type=Path, help="run folder")
    watch.add_argument(
        "--port", type=int, help="port (default: 8642, or the next free one; 0: any free one)"
    )
    watch.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen at (default 127.0.0.1: this machine alone)",
    )
    watch.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="between updates (default 2)"
    )
    watch.add_argument("--open", action="store_true", help="open the page in the browser")


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
    parser.add_argument(
        "--engine",
        metavar="SPEC",
        help="what samples: local (default), vllm, or a server as http://HOST:PORT/v1#MODEL",
    )


def _add_task(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    parser.add_argument(
        "--task",
        action="append" if several else "store",
        help="reasoning_gym:NAME, a .jsonl/.json/.csv/.parquet file, a data set's hub name, or "
        "file.py:object" + (" (repeatable)" if several else ""),
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
