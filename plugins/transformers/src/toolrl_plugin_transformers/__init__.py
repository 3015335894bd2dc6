"""The embedded rollout engine of toolrl. See `toolrl_plugin_transformers.engine`."""
