"""Faults of many kinds, made on purpose, and what was lost by them: `python -m benchmarks.chaos --help`."""
