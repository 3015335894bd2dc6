"""Checkpoints and exports as folders in Hugging Face layout."""
