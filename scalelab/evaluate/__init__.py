"""What a trained run is worth: losses on any data, tasks, samples, and how far two runs are apart."""
