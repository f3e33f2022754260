"""The methods that a benchmark compares: plain CFG, thg's planners, published baselines, and third-party caches."""
