"""Speed, always as ratios of things timed side by side in one run."""
