"""Comparing sums of ideas: a matrix of runs, its statistics, a table and a page."""
