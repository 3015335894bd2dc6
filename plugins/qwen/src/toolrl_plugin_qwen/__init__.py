"""Parsers for the tool-call formats of the Qwen models, which many other models share."""
