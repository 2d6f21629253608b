"""What a notebook calls: `scalelab.runs`, `metrics`, `load`, `fit`, `plan`, `train`, `sweep`, `answer`.

Each goes through the same door as the command of its name, prints nothing, and raises BadInput or WorkFailed
(`scalelab.errors`) with the line that the command would print. Read in this order: `tables` (runs as rows), `work`
(plan, train, sweep, answer, fit), `loaded` (a trained run's model). `fit_rows` reads the rows of `fit`.

Nothing heavy is imported before a function is called.
"""

from scalelab.api.loaded import load
from scalelab.api.tables import Rows, metrics, runs
from scalelab.api.work import answer, fit, plan, sweep, train

__all__ = ["Rows", "answer", "fit", "load", "metrics", "plan", "runs", "sweep", "train"]
