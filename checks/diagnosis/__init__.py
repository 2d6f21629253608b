"""Whether `scalelab diagnose` names planted faults, and `scalelab watch` forecasts what then happens."""
