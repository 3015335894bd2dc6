"""The plugin `wandb`: runs of toolrl in Weights & Biases."""
