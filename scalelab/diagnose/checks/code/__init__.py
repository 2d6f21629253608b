"""Is the program that trains the one that was meant? Direct tests of the code."""
