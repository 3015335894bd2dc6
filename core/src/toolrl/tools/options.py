"""The options of `policy:`, for toolsets that take some of them as their own; see `toolrl.config.tool_policy`."""

from toolrl.config.tool_policy import BreakerOptions, PolicyOptions, RateOptions, RetryOptions

__all__ = ["BreakerOptions", "PolicyOptions", "RateOptions", "RetryOptions"]
