"""Models with experts: written from the contract and docs/stability.md alone, by a hand that had read no rule."""
