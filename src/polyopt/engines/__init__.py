"""Engines sample: `local` (in process), and others behind the same protocol."""
