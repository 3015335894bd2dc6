"""The names under which scripts may still import the run folder; it stands in `toolrl.runs`."""
