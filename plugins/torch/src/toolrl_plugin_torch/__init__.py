"""Trainers in PyTorch: what turns episodes, or demonstrations, into updates of a model."""
