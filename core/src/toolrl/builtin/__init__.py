"""Core's own plugin: what it registers goes through the same hooks as any other plugin's."""
