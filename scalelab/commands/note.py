"""scalelab note RUN TEXT

Write a line into a run's logbook, at its last logged step; `scalelab report` draws it on the loss curve. The run may be
training meanwhile.

Exit code: 0 done, 2 bad input.

    scalelab note runs/mine "disk was full, restarted"
"""

import pathlib

from scalelab.cli.parser import Parser, emit_json
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.untrusted.paths import refuse_link


def main(argv: list[str]) -> int:
    """Append a `note` event at the last logged step. The run may be training meanwhile."""
    parser = Parser("note", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("text", metavar="TEXT", help="what to remember (quote it)")
    options = parser.parse_args(argv)
    folder = pathlib.Path(options.run)
    if not (folder / "config.json").exists():
        raise BadInput(f"{str(folder)!r} is not a run folder: it has no config.json")
    refuse_link(folder)
    text = options.text.strip()
    if not text:
        raise BadInput('the note is empty: write `scalelab note RUN "what happened"`')
    lines = records.read_metrics(folder)
    step = lines[-1]["step"] if lines else 0
    records.write_event(folder, "note", step, text)
    if options.json != "-":
        print(f"noted at step {step} of {folder.name}")
    emit_json({"run": str(folder), "step": step, "text": text}, options.json)
    return 0
