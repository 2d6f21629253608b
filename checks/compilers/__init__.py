"""What compilers for chips that are not here make of the step, beside what `scalelab plan` says of it."""
