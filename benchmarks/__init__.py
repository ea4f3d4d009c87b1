"""What Retinue costs beside the barest loop that does the same: `python -m benchmarks`. Measures, and tests nothing."""
