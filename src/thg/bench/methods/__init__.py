"""What a benchmark compares: plain CFG, thg's planners, rivals, and outside programs."""
