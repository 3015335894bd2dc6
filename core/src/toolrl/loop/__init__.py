"""The loop of a run: order of the data, supply of groups, evaluation, when to save. It asks a trainer for updates."""
