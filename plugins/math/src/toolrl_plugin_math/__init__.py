"""Mathematics: rewards, GSM8K with its answer-checking tool, and generated arithmetic."""
