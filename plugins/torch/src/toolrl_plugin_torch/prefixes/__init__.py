"""Sequences that begin alike are computed once: the tree of their tokens, and attention over it."""
