"""Core's own plugin, registered through the same hooks as any other."""
