"""The benchmark: thg against other methods, with the same seeds and the same number of evaluations."""
