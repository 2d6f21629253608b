"""The contract's line "what was read": batches that are not what the data and the config promise."""

from checks.diagnosis.contract.case import Answer, Case, Edit
from checks.diagnosis.contract.sealed.code import SIZES

BATCHES = "data/batches/batches.py"
STACKED = "numbers = np.stack([read(i) for i in batches])"

CASES = (
    Case(
        "both ranks read the same",
        "read",
        "the second replica's rows are those of the first",
        Answer(("equal", "same row", "identical", "twice", "duplicate", "repeat", "rank", "replica")),
        {"parallel.data": 2},
        SIZES,
        seed=41,
        devices=2,
        edits=(
            Edit(
                BATCHES,
                STACKED,
                STACKED + "\n        numbers = np.concatenate([numbers[:, : numbers.shape[1] // 2]] * 2, axis=1)",
            ),
        ),
        harm="that of half the batch",
    ),
    Case(
        "a small shuffle buffer",
        "read",
        "windows are shuffled within 64 neighbours only",
        Answer(("order", "shuffl", "cluster")),
        {},
        SIZES,
        seed=42,
        edits=(
            Edit(
                "data/batches/order.py",
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
                "    blocks, inside = np.divmod(np.asarray(positions, np.int64), 64)\n"
                "    return (64 * blocks + permute_positions(inside, 64, (seed, 1))) % n_windows\n"
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
            ),
        ),
        harm="plain: the last batches are one file",
    ),
    Case(
        "rows that were not filled",
        "read",
        "the last quarter of each batch is padding",
        Answer(("token", "padding", "rows", "empty", "target", "fewer")),
        {},
        SIZES,
        seed=43,
        edits=(Edit(BATCHES, STACKED, STACKED + "\n        numbers[:, -(numbers.shape[1] // 4) :] = NO_WINDOW"),),
        harm="that of three quarters of the batch",
    ),
    Case(
        "a hundred batches that nobody read",
        "read",
        "after a resume the reader is a hundred batches ahead",
        Answer(("never", "skipped", "resume", "cursor", "not read", "missing", "ahead")),
        {"schedule.name": "constant", "train.steps": 120, "optim.name": "lion", "optim.peak_lr": 1e-3},
        SIZES,
        seed=44,
        later={"train.steps": 200},
        later_edits=(
            Edit(BATCHES, STACKED, "numbers = np.stack([read(i + 100 if i >= 120 else i) for i in batches])"),
        ),
        harm="none to be seen",
    ),
    Case(
        "reprints",
        "read",
        "each text six times, with a few words changed",
        Answer(("duplicate", "near", "copies", "repeat")),
        {"data.source": "mine:reprints"},
        SIZES,
        seed=45,
        without=None,
        harm="a validation loss that is too good, as copies are on both sides",
    ),
    Case(
        "trained on what is held out",
        "read",
        "the training batches come from the validation split",
        Answer(("validation", "share", "overlap", "held out", "split")),
        {},
        SIZES,
        seed=46,
        edits=(
            Edit(
                BATCHES,
                'Windows({part.name: part.train for part in dataset.parts}, seq_len, "training")',
                'Windows({part.name: part.val for part in dataset.parts}, seq_len, "training")',
            ),
        ),
        harm="a validation loss that says nothing",
    ),
    Case(
        "validated on long files",
        "read",
        "the validation split is of the longest files, not of a fair draw",
        Answer(("distribution", "validation", "differ", "split", "longer")),
        {},
        SIZES,
        seed=47,
        edits=(
            Edit(
                "data/dataset.py",
                'yield "val" if digest in held_out else "train", tokenizer.encode(piece)',
                'yield "val" if len(piece) > 70_000 else "train", tokenizer.encode(piece)',
            ),
        ),
        harm="a validation loss of another text",
    ),
)
