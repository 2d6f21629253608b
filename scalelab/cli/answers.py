"""Print a sweep's answer on a terminal or into a pipe: one line per setting, then sentences."""

from scalelab.cli.parser import print_table
from scalelab.sweep.answer import wording
from scalelab.sweep.answer.ranking import SweepAnswer


def print_answer(answer: SweepAnswer) -> None:
    """Print the table of settings and the sentences about them on standard output."""
    columns = wording.answer_columns(answer)
    if answer.settings:
        print_table(list(columns.values()), [[row[key] for key in columns] for row in wording.answer_cells(answer)])
    print("\n".join(wording.describe_answer(answer)))
