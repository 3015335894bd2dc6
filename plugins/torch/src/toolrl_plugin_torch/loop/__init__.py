"""The loop of reinforcement learning: batches, updates, evaluations, checkpoints."""
