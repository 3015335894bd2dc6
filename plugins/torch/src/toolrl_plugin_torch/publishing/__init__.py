"""A run's model on the Hugging Face Hub: its model card and its upload."""
