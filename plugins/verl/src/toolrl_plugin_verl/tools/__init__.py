"""Stand-ins for `verl.tools`."""
