"""Mappings from vector files to parts, one module per family."""
