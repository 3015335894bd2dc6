"""Adapters in the place of whole weights."""
