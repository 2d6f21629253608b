"""The sealed half: faults by line of the contract, and odd healthy runs."""
