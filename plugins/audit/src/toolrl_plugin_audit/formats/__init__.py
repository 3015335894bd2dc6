"""Readers of what each system writes."""
