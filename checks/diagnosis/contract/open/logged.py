"""The contract's line "what was logged": numbers in the record that are not what happened."""

from checks.diagnosis.contract.case import Answer, Case, Edit

CASES = (
    Case(
        "a validation loss that was improved",
        "logged",
        "the last validation loss is a tenth of a nat too low",
        Answer(("validation", "val_loss", "recomputed", "logged")),
        doctor="better_val_loss",
        harm="none to the weights: the number is wrong",
    ),
    Case(
        "a schedule that counts from the resume",
        "logged",
        "the LR after a resume is that of the steps since then",
        Answer(("schedule", "lr ", "learning rate", "restart"), ("schedule",)),
        {"train.steps": 120, "schedule.name": "inverse_sqrt"},
        later={"train.steps": 200},
        later_edits=(
            Edit(
                "optim/schedules.py",
                "    lr = make_schedule(static)(step, h)\n    decay",
                "    lr = make_schedule(static)(step - 120, h)\n    decay",
            ),
        ),
        judged_clean=True,
        harm="small",
    ),
    Case(
        "lines that are gone",
        "logged",
        "thirty steps are missing from the metrics, as after a copy that was cut",
        Answer(("metrics", "missing", "lines", "whole", "gap", "incomplete")),
        doctor="lines_gone",
        harm="none to the weights",
    ),
)
