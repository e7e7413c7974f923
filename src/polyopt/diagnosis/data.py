"""Signs about prompts and special tokens, from logged rollouts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyopt.diagnosis.evidence import Evidence, LoggedRollout
from polyopt.diagnosis.signs import Symptom, sign, sureness
from polyopt.tasks.overlap import plain

SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^<>\s]{1,40}\uff5c>|</?s>|\[/?INST\]"
    r"|<(?:bos|eos|pad|end_of_turn|start_of_turn)>"
)
"""What special tokens of the common families look like."""

BEGIN = re.compile(r"<\|(?:begin|start)[^|]*\|>|<\uff5cbegin[^<>]*\uff5c>|<s>|<bos>")
"""Those that begin a text."""

END = re.compile(
    r"<\|(?:im_end|endoftext|end_of_text|eot_id|eot|eos|end_of_turn)\|>"
    r"|<\uff5cend[^<>]*\uff5c>|</s>|<eos>|<end_of_turn>"
)
"""Those that end a turn (not `<|end|>`, between whose parts some models answer)."""


@sign(
    "special-tokens",
    harm=3,
    remedy="check the chat template and the model's end-of-text ids: --chat-template none where "
    "prompts already hold the template's text.",
    flags=("--chat-template none",),
)
def special_tokens(run: Evidence) -> Symptom | None:
    """BOS is doubled, or completions go on past their end-of-text token."""
    rows = run.rollouts
    if not rows:
        return None
    kinds = {
        "prompts already hold special tokens, so the tokenizer's own come twice": [
            row for row in rows if starts_with_special(row.prompt)
        ],
        "completions begin with a begin-of-text token": [r for r in rows if begins_anew(r)],
        "completions go on after a special token that should end them": [
            row for row in rows if goes_on(row)
        ],
    }
    message, hit = max(kinds.items(), key=lambda item: len(item[1]))
    share = len(hit) / len(rows)
    if share < 0.05:
        return None
    return Symptom(
        f"{share:.0%} of logged {message}",
        sureness(share, 0.0, 0.3),
        {"rollouts": len(hit), "of": len(rows)},
        (hit[0].step, hit[-1].step),
    )


def starts_with_special(prompt: str) -> bool:
    """Whether a prompt's text begins with a special token."""
    return SPECIAL.match(prompt.lstrip()) is not None


def begins_anew(row: LoggedRollout) -> bool:
    """Whether the policy's first token is one that begins a text."""
    first = next((t for t, own in zip(row.tokens, written(row), strict=False) if own), "")
    return BEGIN.fullmatch(first.strip()) is not None


def goes_on(row: LoggedRollout) -> bool:
    """Whether the policy itself wrote more after a token that ends a turn."""
    own = written(row)
    return any(
        own[i] and own[i + 1] and END.fullmatch(token.strip())
        for i, token in enumerate(row.tokens[:-1])
    )


def written(row: LoggedRollout) -> list[bool]:
    """Which tokens the policy wrote; all where no mask was logged."""
    return [bool(m) for m in row.mask] or [True] * len(row.tokens)


@sign(
    "duplicate-prompts",
    harm=3,
    remedy="take these problems out of one of the two sets: held-out accuracy measures memory on "
    "them (--heldout FILE, or --heldout-size with rows that differ).",
    flags=("--heldout FILE",),
)
def duplicate_prompts(run: Evidence) -> Symptom | None:
    """Held-out problems were trained on."""
    counts = run.about.get("prompts") or {}
    if "both" in counts:
        return _both(counts["both"], counts["heldout"], counts["examples"], "", run.steps())
    held = {plain(r.prompt): r for r in run.rollouts if r.phase in ("before", "after")}
    trained = {plain(r.prompt) for r in run.trained()}
    texts = [text for text in held if text in trained]
    return _both(
        len(texts),
        len(held),
        [held[text].prompt for text in texts],
        "logged ",
        steps_of(run.trained(), texts),
    )


def _both(
    count: int, of: int, examples: Sequence[str], which: str, steps: tuple[int, int]
) -> Symptom | None:
    if not count:
        return None
    return Symptom(
        f"{count} of {of} {which}held-out prompts are also trained on, such as "
        f"{' '.join(examples[0].split())[:60]!r}",
        sureness(count, 0, 2),
        {"duplicates": count, "held-out prompts": of, "share": count / of},
        steps,
    )


def steps_of(rows: Sequence[LoggedRollout], texts: Sequence[str]) -> tuple[int, int]:
    """First and last step that trained one of these prompts; (0, 0) if none did."""
    steps = [row.step for row in rows if plain(row.prompt) in set(texts)]
    return (min(steps), max(steps)) if steps else (0, 0)
