"""First and daily commands: doctor, init, runs, completion."""
