"""scalelab note RUN TEXT

Write a line into a run's logbook, at its last logged step; `scalelab report` draws it on the loss curve. The run may be
training meanwhile.

Exit code: 0 done, 2 bad input.

    scalelab note runs/mine "disk was full, restarted"
"""

import pathlib

from scalelab import api
from scalelab.cli.parser import Parser, emit_json


def main(argv: list[str]) -> int:
    """Append a `note` event at the last logged step. The run may be training meanwhile."""
    parser = Parser("note", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("text", metavar="TEXT", help="what to remember (quote it)")
    options = parser.parse_args(argv)
    noted = api.note(options.run, options.text)
    if options.json != "-":
        print(f"noted at step {noted.step} of {pathlib.Path(noted.run).name}")
    emit_json(noted._asdict(), options.json)
    return 0
