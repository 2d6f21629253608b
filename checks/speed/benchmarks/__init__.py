"""Benchmarks of speed, always as ratios of contenders timed side by side in one run."""
