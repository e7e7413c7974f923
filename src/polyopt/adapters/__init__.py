"""Recipes in other trainers: `polyopt.adapters.trl` and `polyopt.adapters.verl`."""
