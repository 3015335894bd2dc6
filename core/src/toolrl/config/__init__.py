"""A run's config: its frame, how it is read and checked, its JSON Schema."""
