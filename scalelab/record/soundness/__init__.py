"""Whether the files of a run's folder agree with each other: nothing is believed because one of them says so."""
