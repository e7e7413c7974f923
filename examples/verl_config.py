"""A recipe in verl: prints the options that go with an expression.

pip install verl==0.9.1
python examples/verl_config.py rloo+gspo

Then, with the printed options:

    export VERL_USE_EXTERNAL_MODULES=polyopt.adapters.verl
    python -m verl.trainer.main_ppo $OPTIONS data.train_files=... actor_rollout_ref.model.path=...
"""

from __future__ import annotations

import sys

from polyopt.adapters.verl import settings


def main() -> None:
    """One option a line."""
    expression = sys.argv[1] if len(sys.argv) > 1 else "grpo"
    for name, value in settings(expression).items():
        print(f"{name}={value}")


if __name__ == "__main__":
    main()
