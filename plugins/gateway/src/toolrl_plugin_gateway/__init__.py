"""An OpenAI- and Anthropic-compatible server in front of the rollout engine, and the harnesses that ask it."""
