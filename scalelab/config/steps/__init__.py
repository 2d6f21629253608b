"""Count the steps of a run: `schedule_steps` (warm-up and decay), `batch_ramp`, `stretches` (the ledger)."""
