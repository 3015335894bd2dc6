"""Discovery of plugins, the registry of their components, and the events of observers."""
