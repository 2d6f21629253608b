"""Metrics of the golden step: a test holds training to them, and each result names them as what made it."""

# Two steps of configs/tiny.py at seed 0 on fixed tokens.
GOLDEN = {
    "train_loss": (5.556829, 5.558409),
    "grad_norm": (0.4824364, 0.4806955),
    "update_norm": (0.2431972, 0.3455199),
    "param_norm": (40.93136, 40.92664),
}
