"""Looks at data before and after a run reads them: `rows` (what a batch holds), `stats` (what a corpus holds)."""
