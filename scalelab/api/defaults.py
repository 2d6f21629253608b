"""What the functions of this package do unless told otherwise, as the help of a command names it: loads nothing."""

AFTER = 200  # steps that a replay trains after its window
BUDGET_INPUTS = ("flops", "tokens", "params", "target_loss", "gpu_hours")  # one of them makes a budget
FREE = ("precision", "optimizer")  # what a plan may be left to choose beside the layout
DEMO_FOLDER = "scalelab-demo"
GRID_OPTION = "--grid-columns"
HOLDOUT_DIVISOR = 5  # a tournament holds out a fifth of the rows by default
NOISE_BATCHES = 16
TWIN_STEPS, TWIN_WIDTH = 500, 64
WIDER = 2  # times the width, of a stability forecast
