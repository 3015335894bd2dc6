"""The plugin `parse`: what a parser makes of a text."""
