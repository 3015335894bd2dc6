"""Fields of a request's body: which are honoured, which are ignored, and which are refused.

A field that changes what the model sees or may do is honoured or refused; ignored are those of accounts and caches, and
sampling, which is the run's. Each field of the newest SDKs is in one of the lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolrl_plugin_gateway.dialect import Json, RefusedError

_UNSET = (None, False, "", [], {})
"""Values of a refused field that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that can't be honoured."""

    instead: str
    """What to do, for the reader of the error."""
    harmless: tuple[Any, ...] = _UNSET
    """Values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one API."""

    read: frozenset[str]
    """Honoured, by the dialect's `read`."""
    ignored: frozenset[str]
    """Without effect on what the model sees or may do, or the run's business."""
    refused: Mapping[str, Refused]

    def check(self, body: Json) -> tuple[str, ...]:
        """The ignored and unknown fields of a body, to be named in the log. Raises RefusedError."""
        for name, field in self.refused.items():
            if name in body and not any(body[name] == it for it in field.harmless):
                raise RefusedError.invalid(f"{name} is not supported: {field.instead}")
        known = self.read | self.refused.keys()
        return tuple([name for name, value in body.items() if name not in known and value is not None])


_TEMPLATE = Refused("set it in the config, under the environment's chat format", harmless=(None, {}))
_FORMAT = Refused("send response_format, or describe the format in the prompt")
_SAMPLING = Refused("sampling is the run's", harmless=(None, [], {}))
EXTENSIONS: Mapping[str, Refused] = {
    "add_generation_prompt": Refused("send messages that the model answers", harmless=(None, True)),
    "allowed_token_ids": _SAMPLING,
    "bad_words": _SAMPLING,
    "chat_template": _TEMPLATE,
    "chat_template_kwargs": _TEMPLATE,
    "continue_final_message": Refused("send messages that the model answers"),
    "documents": Refused("put their text into the messages"),
    "ebnf": _FORMAT,
    "enable_thinking": _TEMPLATE,
    "format": _FORMAT,
    "grammar": _FORMAT,
    "guided_choice": _FORMAT,
    "guided_grammar": _FORMAT,
    "guided_json": _FORMAT,
    "guided_regex": _FORMAT,
    "ignore_eos": _SAMPLING,
    "json_schema": _FORMAT,
    "logits_processors": _SAMPLING,
    "min_tokens": Refused("sampling is the run's", harmless=(None, 0)),
    "plugins": Refused("send function tools, which the program answers"),
    "regex": _FORMAT,
    "stop_token_ids": Refused("send stop sequences as text"),
    "structured_outputs": _FORMAT,
    "transforms": Refused("shorten the history in the program"),
    "truncate_prompt_tokens": Refused("shorten the history in the program"),
}
"""Fields that change what the model sees or may do, of other servers that have OpenAI's APIs: vLLM, SGLang, llama.cpp,
Ollama, OpenRouter, DashScope."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPENAI_IGNORED = _names(
    "metadata moderation prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier "
    "store temperature top_logprobs top_p user"
)
CHAT = Fields(
    read=_names(
        "max_completion_tokens max_tokens messages model n parallel_tool_calls response_format stop stream "
        "stream_options tool_choice tools"
    ),
    ignored=_OPENAI_IGNORED
    | _names("frequency_penalty logprobs prediction presence_penalty reasoning_effort seed verbosity"),
    refused={
        "audio": Refused("the model answers by text"),
        "function_call": Refused("send tools and tool_choice"),
        "functions": Refused("send tools"),
        "logit_bias": _SAMPLING,
        "modalities": Refused("the model answers by text", harmless=(None, [], ["text"])),
        "web_search_options": Refused("send function tools, which the program answers", harmless=(None,)),
        **EXTENSIONS,
    },
)
RESPONSES = Fields(
    read=_names(
        "input instructions max_output_tokens model parallel_tool_calls previous_response_id stream text tool_choice "
        "tools"
    ),
    ignored=_OPENAI_IGNORED
    | _names("access_programs background_options image include max_tool_calls reasoning stream_options truncation"),
    refused={
        "background": Refused("wait for the response"),
        "context_management": Refused("shorten the history in the program"),
        "conversation": Refused("send the whole history, or previous_response_id"),
        "prompt": Refused("send the text in instructions or input"),
        **EXTENSIONS,
    },
)
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
MESSAGES = Fields(
    read=_names(
        "max_tokens messages model output_config output_format stop_sequences stream system thinking thread "
        "tool_choice tools"
    ),
    ignored=_names(
        "betas billing_policy cache_control diagnostics fallback_credit_token fallbacks inference_geo metadata "
        "service_tier speed temperature top_k top_p user_profile_id workspace_id"
    ),
    refused={
        "compaction": Refused("shorten the history in the program"),
        "container": Refused("run code in the program"),
        "context_management": Refused(
            "shorten the history in the program", harmless=(*_UNSET, {"edits": []}, _KEEPS_ALL)
        ),
        "mcp_servers": Refused("send function tools, which the program answers"),
    },
)
