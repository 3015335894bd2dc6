"""From AReaL's configs and start scripts to toolrl's configs."""
