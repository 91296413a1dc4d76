"""Lengths of history that are measured, in tokens."""

SIZES = (1_000, 10_000, 100_000, 200_000, 1_000_000)

FAMILY_SIZES = (1_000, 10_000, 100_000, 200_000)
"""Those at which the other families are measured too."""
