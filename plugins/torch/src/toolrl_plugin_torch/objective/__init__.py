"""What a step optimises: rewards to advantages, log-probabilities to a loss. Pure functions."""
