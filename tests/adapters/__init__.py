"""Recipes in other trainers; run with `make peers`, skipped where TRL and verl are missing."""
