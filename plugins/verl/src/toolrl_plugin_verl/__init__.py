"""Brings verl's tools, data, rewards, dumps and configs along.

The package is laid out as verl is, and stands in for it where a tool's file imports verl (`imports.py`).
"""
