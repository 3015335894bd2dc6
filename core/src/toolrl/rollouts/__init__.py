"""Episodes: the state machine of one, and a runner that keeps groups of them in flight."""
