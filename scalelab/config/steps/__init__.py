"""How the steps of a run are counted: `schedule_steps` (warm-up and decay), `batch_ramp`, `stretches` (the ledger)."""
