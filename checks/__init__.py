"""What verifies the package and is not a study for its users; no part of the wheel."""
