"""Imports what takes longest at the start of a run, for a process that has time before it is told what to do."""

from __future__ import annotations


def warm() -> None:
    """torch, transformers, and what ranks need of them."""
    import transformers

    import toolrl_plugin_torch.sharding.process_group
    import toolrl_plugin_torch.sharding.sharded
    import toolrl_plugin_torch.trainer  # noqa: F401

    # transformers imports them when they are asked for.
    _ = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
