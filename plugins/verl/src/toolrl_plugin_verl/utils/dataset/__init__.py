"""Stand-in for `verl.utils.dataset`."""

from toolrl_plugin_verl.utils.dataset.rl_dataset import RLHFDataset

__all__ = ["RLHFDataset"]
