"""What a run takes of its devices, computed before anything is loaded: `toolrl plan`."""
