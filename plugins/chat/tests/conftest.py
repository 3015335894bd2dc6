"""Tiny byte-level BPE tokenizers with chat templates of every kind that the formats have to deal with.

The libraries are imported where they are used: the contract tests run without them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import BuildContext
from toolrl.types import ToolSpec
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.template import TemplateFormat

sys.path[:0] = [str(Path(__file__).resolve().parent / "support"), str(Path(__file__).resolve().parent)]

QWEN = """{%- macro calls(message) -%}
{%- for call in message.tool_calls %}{{ '\\n' if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}{%- endmacro -%}
{%- if tools %}<|im_start|>system
{{ messages[0].content + '\\n\\n' if messages[0].role == 'system' }}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{% if KEEPS_THINKING -%}
<think>
{{ message.reasoning_content | trim if message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{{ calls(message) }}<|im_end|>
{% elif message.role == 'tool' -%}
{{ '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
<tool_response>
{{ message.content }}
</tool_response>{{ '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

LAST_QUERY = """{%- set ns = namespace(last=-1) %}{% for message in messages %}{% if message.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}"""

TEMPLATES: dict[str, str] = {
    # Native tools and calls, results in a user turn, a newline behind the end mark.
    "qwen": QWEN.replace("KEEPS_THINKING", "false"),
    # The same, and thinking that is kept only behind the last question.
    "thinking": LAST_QUERY
    + QWEN.replace("KEEPS_THINKING", "loop.index0 > ns.last and (loop.last or message.reasoning_content)"),
    # Ignores tools, drops calls, prints any role.
    "smollm": """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    # No end mark: the next header ends a turn.
    "headers": """{% for tool in tools or [] %}<|system|>{{ tool | tojson }}{% endfor %}{% for message in messages %}
{%- if message.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}
<tool_response>{{ message.content }}</tool_response>{% else %}<|{{ message.role }}|>
{{ message.content }}{% for call in message.tool_calls %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}""",
    # Arguments as JSON text, one call a turn, another end mark behind calls, content and calls exclude each other.
    "one_call": """{{ bos_token }}{% for tool in tools or [] %}<|system|>{{ tool | tojson }}<|end|>{% endfor %}
{%- for message in messages %}{% if message.tool_calls %}{% if message.tool_calls | length > 1 %}
{{- raise_exception('one call at once') }}{% endif %}{% set f = message.tool_calls[0].function -%}
<|assistant|>to={{ f.name }} {{ '' + f.arguments }}<|call|>{% elif message.role == 'tool' -%}
<|observation|>{{ message.content | tojson }}<|end|>{% else -%}
<|{{ message.role }}|>{{ message.content | trim }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    # Roles must alternate, no system message, no tools.
    "strict": """{{ bos_token }}{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}
{{- raise_exception('Role ' + message.role + ' not supported') }}{% endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif -%}
<|{{ message.role }}|>
{{ message.content | trim }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}""",
    # The prompt opens a thinking block, earlier turns show none.
    "opened": """{% for message in messages %}<|{{ message.role }}|>
{{ message.content.split('</think>')[-1] }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% endif %}""",
    # Contents as lists of parts.
    "parts": """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    # Turns end in ordinary text.
    "text_ends": """{% for message in messages %}### {{ message.role }}: {{ message.content }}

{% endfor %}{% if add_generation_prompt %}### assistant: {% endif %}""",
}

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|call|>", "<|bos|>"]
SPECIAL += ["<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
END = {
    "headers": "<|endoftext|>",
    "one_call": "<|end|>",
    "strict": "<|end|>",
    "opened": "<|end|>",
    "text_ends": "<|endoftext|>",
}


@pytest.fixture(scope="session")
def backend_json() -> str:
    from small_tokenizers import byte_level
    from tokenizers import normalizers

    return byte_level(normalizer=normalizers.NFC(), special=SPECIAL, tags=TAGS).to_str()


class Named(dict[str, Any]):
    """Tokenizers by name; shown in a failing example by name only."""

    def __repr__(self) -> str:
        return f"tokenizers({', '.join(self)})"


@pytest.fixture(scope="session")
def tokenizers(backend_json: str) -> dict[str, Any]:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = Named()
    for name, template in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(backend_json),
            eos_token=END.get(name, "<|im_end|>"),
            bos_token="<|bos|>",
            clean_up_tokenization_spaces=False,
        )
        tokenizer.chat_template = template
        made[name] = tokenizer
    return made


@pytest.fixture(scope="session")
def base_tokenizer(backend_json: str) -> Any:
    """Without a chat template."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(backend_json), eos_token="<|endoftext|>")


Build = Callable[..., TemplateFormat]


@pytest.fixture(scope="session")
def build(tokenizers: dict[str, Any]) -> Build:
    """`build("qwen", preamble="always")`: a template format."""

    def make(name: str, **options: Any) -> TemplateFormat:
        context = BuildContext("template", where="environments.default.chat_format", tokenizer=tokenizers[name])
        return TemplateFormat(TemplateOptions(**options), context)

    plain = functools.cache(make)
    return lambda name, **options: make(name, **options) if options else plain(name)


@pytest.fixture(scope="session")
def calculator() -> ToolSpec:
    properties = {"expression": {"type": "string", "description": "What to compute."}}
    return ToolSpec(
        "calculator", "Exact arithmetic.", {"type": "object", "properties": properties, "required": ["expression"]}
    )
