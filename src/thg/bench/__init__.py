"""The benchmark: thg against its rivals, on the same seeds and the same number of evaluations."""
