"""The plugin `console`: a run's progress on the terminal and in notebooks."""
