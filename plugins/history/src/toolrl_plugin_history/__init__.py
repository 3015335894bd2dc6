"""The plugin `history`: shorter histories in the turn loop."""
