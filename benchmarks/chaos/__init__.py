"""What was tried against fedaccord, and what was lost: `python -m benchmarks.chaos --help`."""
