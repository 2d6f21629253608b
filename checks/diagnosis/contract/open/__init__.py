"""The open half: faults by line of the contract, and odd healthy runs."""
