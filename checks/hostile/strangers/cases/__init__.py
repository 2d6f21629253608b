"""The hostile cases: those of the first half, and those that were not run before the defence was finished."""
