"""Brings RLFactory's environments, tool managers, parser, rewards and start scripts along.

`envs` and `managers` hold stand-ins for the classes that a user's own derive from, and `loading` lets
their files import them under RLFactory's names.
"""
