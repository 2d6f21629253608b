"""The contract's line "what was read": batches that are not what the data and the config promise."""

from checks.diagnosis.contract.case import Answer, Case, Edit

BATCHES = "data/batches/batches.py"
STACKED = "numbers = np.stack([read(i) for i in batches])"

CASES = (
    Case(
        "rows twice in a batch",
        "read",
        "each row of a batch stands in it twice",
        Answer(("equal", "same row", "identical", "twice", "duplicate", "repeat", "rows")),
        edits=(Edit(BATCHES, STACKED, STACKED + "\n        numbers = np.repeat(numbers[:, ::2], 2, axis=1)"),),
        harm="that of half the batch",
    ),
    Case(
        "in the order of the files",
        "read",
        "windows are read in the order of the corpus",
        Answer(("order", "shuffl")),
        edits=(
            Edit(
                "data/batches/order.py",
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
                "    return np.asarray(positions, np.int64) % n_windows\n"
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
            ),
        ),
        harm="plain: the last batches are one file",
    ),
    Case(
        "blank documents",
        "read",
        "half the documents are NUL bytes, the separator: rows without a target",
        Answer(("target", "empty", "blank", "separator", "padding", "corrupt", "nothing to predict", "zeros")),
        {"data.documents": "mask", "data.source": "mine:many_blanks", "train.global_batch": 2},
        without={"data.source": "mine:library_of"},
        harm="that of half the batch",
    ),
    Case(
        "back by forty steps",
        "read",
        "after a resume the batches of forty steps before are read again",
        Answer(("again", "twice", "resume", "cursor", "repeat", "read before")),
        {"schedule.name": "constant", "schedule.warmup_steps": 10, "train.steps": 120},
        later={"train.steps": 200},
        later_edits=(Edit(BATCHES, STACKED, "numbers = np.stack([read(i - 40 if i >= 120 else i) for i in batches])"),),
        harm="none to be seen on a corpus of this size",
    ),
    Case(
        "one text from a template",
        "read",
        "eight near copies of each document, which differ in their last line",
        Answer(("duplicate", "near", "copies", "repeat")),
        {"data.source": "mine:templates"},
        without=None,
        harm="a validation loss that is too good, as copies are on both sides",
    ),
)
