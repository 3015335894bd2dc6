"""Rollout workers, trainer workers and cluster-wide limits on Ray. See `toolrl_plugin_ray.cluster`."""
