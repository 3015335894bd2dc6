"""The plugin `trackio`: runs of toolrl in Trackio."""
