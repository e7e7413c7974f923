"""Tasks: prompts and what their answers are checked with."""
