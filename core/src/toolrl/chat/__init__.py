"""Conversations of data rows, an episode's token buffer, and the check that a parser reads what a chat format writes.

The formats are components of plugins: `template` and `plain` of the plugin `chat`.
"""
