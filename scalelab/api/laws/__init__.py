"""Laws from Python: `fits` (a law), `settings` (best settings), `ladder` (accuracy), `curves` (within a run)."""
