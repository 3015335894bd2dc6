"""Supervised fine-tuning: demonstrations as tokens, and the loop that trains on them."""
