"""Training: pure functions for the numbers, trainers and loops that put them in order, checkpoints."""
