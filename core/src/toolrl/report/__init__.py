"""The run folder: what a run writes, how it is read again, and the report made from it."""
