"""`toolrl audit`: what is wrong in the rollouts of a run."""
