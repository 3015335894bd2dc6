"""An exact calculator as a tool."""
