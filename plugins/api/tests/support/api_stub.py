"""What an API answers in tests."""

from __future__ import annotations

from typing import Any

from toolrl_testing.http_stub import HttpReply

KEY = "sk-secret-0123456789"


def says(content: Any = "Done.", *calls: tuple[str, str], finish: str = "stop", **message: Any) -> HttpReply:
    """A chat completion with these calls: name and arguments."""
    found = [
        {"id": f"x{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": content, **({"tool_calls": found} if calls else {}), **message}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    return HttpReply({"choices": [{"message": said, "finish_reason": finish}], "usage": usage})


def refuses(status: int, message: str = "no", code: str = "because", **headers: str) -> HttpReply:
    return HttpReply({"error": {"message": message, "code": code}}, status=status, headers=headers)
