"""What this plugin has to know of each family besides what the library does: the marks in its text.

The library reads a turn; these marks show where it reads nothing, so that no call is lost in silence, and where
a turn's thinking and content stand. A mark is found by its token where the tokenizer has one, else as text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Cost = Literal["none", "parameters", "invokes", "keys", "dsml", "fence", "harmony", "channels"]
"""What takes the library more than linear time; see `parser.py`."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Calls as tags with names in them, whose values are plain text."""

    function: str
    """A regular expression for what opens a function; its first group is the tool's name."""
    function_end: str
    parameter: str
    """A regular expression for what opens an argument; its first group is the key, a second one says `true` if the
    value is a string and `false` if it is JSON."""
    parameter_end: str
    newline: bool = False
    """The template writes one newline on each side of a value."""
    wrapped: bool = False
    """The marks around functions belong to the calls, and the last of them may lack its own closing tag."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Calls as a name, and keys and values in marks of their own."""

    key: tuple[str, str]
    value: tuple[str, str]
    separator: str = ""
    """What may stand between the name and the first key."""


@dataclass(frozen=True, slots=True)
class Family:
    """Marks and manners of one family."""

    think: tuple[str, str] = ("<think>", "</think>")
    """What opens and closes thinking; empty texts where there is none."""
    rethinks: bool = False
    """Thinking may begin again later in the turn, and a call ends it."""
    thinks_unasked: bool = False
    """A turn opens its thinking itself, unless the prompt closed it."""
    thinking_ends: str = "\n</think>\n\n"
    """What a turn says between thinking that the prompt opened and its answer, where the library renders none of it."""
    opens: tuple[str, ...] = ("<tool_call>",)
    """What begins a call."""
    closes: tuple[str, ...] = ("</tool_call>",)
    """What ends a call."""
    begins: str = ""
    """What else begins a call, as a regular expression on the text."""
    form_begins: str = ""
    """What the form of a call begins with, where that is neither a section nor an opening mark."""
    sections: tuple[str, str] = ("", "")
    """What stands around all calls of a turn."""
    headers: tuple[str, ...] = ()
    """Ends of a turn that are the next message's first token too."""
    bodies: str = ""
    """A regular expression whose first group is a piece of content, for turns made of segments."""
    arguments: Tags | Pairs | None = None
    """How values are written bare, as text without quotes; None for families that write JSON or the like."""
    lead: str = ""
    """What an attempt begins with, if that is another mark than the opening one."""
    head: str = ""
    """What parts a call's name from its JSON."""
    one_section: bool = False
    """The library reads the first section of a turn only."""
    quote: str = ""
    """A mark around strings, which therefore no key and no value can hold."""
    bare_objects: bool = False
    """A call is a JSON object without marks around it; see `objects.py`."""
    native_ids: bool = False
    """Calls carry `functions.NAME:INDEX`, and results repeat it."""
    closing_stop: str = ""
    """An end mark of a turn that is a call's closing mark too."""
    encodes_itself: bool = False
    """The library doesn't encode with the tokenizer, and reads control strings as plain text by itself."""
    costs: Cost = "none"


_TAGGED = Family()
_XML = Tags(
    function=r"<function=([^<>\n]*)>",
    function_end="</function>",
    parameter=r"<parameter=([^<>\n]*)>",
    parameter_end="</parameter>",
    newline=True,
    wrapped=True,
)
_INVOKES = Tags(
    function=r'<invoke name="([^"<>\n]*)">',
    function_end="</invoke>",
    parameter=r'<parameter name="([^"<>\n]*)">',
    parameter_end="</parameter>",
)
_DSML = Tags(
    function=r'<｜DSML｜invoke name="([^"<>\n]*)">',
    function_end="</｜DSML｜invoke>",
    parameter=r'<｜DSML｜parameter name="([^"<>\n]*)" string="(true|false)">',
    parameter_end="</｜DSML｜parameter>",
)
_PAIRS = Pairs(key=("<arg_key>", "</arg_key>"), value=("<arg_value>", "</arg_value>"))
_PARAMETERS = replace(_TAGGED, begins="<function=", arguments=_XML, costs="parameters")
_GLM = replace(_TAGGED, rethinks=True, headers=("<|user|>", "<|observation|>"), arguments=_PAIRS)
_LAGUNA = replace(_TAGGED, arguments=_PAIRS, costs="keys")
_KIMI = replace(
    _TAGGED,
    opens=("<|tool_call_begin|>",),
    closes=("<|tool_call_end|>",),
    sections=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    head="<|tool_call_argument_begin|>",
    one_section=True,
    thinking_ends="</think>",
    native_ids=True,
)
_DEEPSEEK = replace(
    _TAGGED,
    opens=("<｜tool▁call▁begin｜>",),
    closes=("<｜tool▁call▁end｜>",),
    sections=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    head="<｜tool▁sep｜>",
    one_section=True,
    costs="fence",
)

FAMILIES: dict[str, Family] = {
    "qwen3": replace(_TAGGED, thinks_unasked=True),
    "qwen3-vl": _TAGGED,
    "qwen3.5": _PARAMETERS,
    "qwen3.6": _PARAMETERS,
    "qwen3.8": _PARAMETERS,
    "prime-qwen3": _PARAMETERS,
    "glm-4.5": replace(_GLM, thinks_unasked=True),
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "glm-5.3": _GLM,
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v4": Family(
        rethinks=True,
        thinking_ends="</think>",
        opens=("<｜DSML｜invoke",),
        closes=("</｜DSML｜invoke>",),
        sections=("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        arguments=_DSML,
        costs="dsml",
    ),
    "kimi-k2": _KIMI,
    "kimi-k2.5": _KIMI,
    "llama-3": Family(
        think=("", ""),
        opens=("<|python_tag|>",),
        closes=(),
        bare_objects=True,
    ),
    "gpt-oss": Family(
        rethinks=True,
        think=("<|channel|>analysis<|message|>", "<|end|>"),
        thinking_ends="<|end|><|start|>assistant",
        opens=(),
        closes=(),
        form_begins="<|start|>",
        lead="<|start|>",
        head="<|message|>",
        begins=r"(?:<\|start\|>assistant|<\|channel\|>\w*) to=|(?:\bassistant|\A) ?to=functions\.",
        bodies=r"<\|channel\|>(?:final|commentary)[^<]*<\|message\|>(.*?)(?=<\|(?:end|return|call|start)\|>|\Z)",
        closing_stop="<|call|>",
        encodes_itself=True,
        costs="harmony",
    ),
    "minimax-m2": replace(
        _TAGGED,
        opens=(),
        closes=(),
        begins=r"<invoke\b",
        sections=("<minimax:tool_call>", "</minimax:tool_call>"),
        arguments=_INVOKES,
        costs="invokes",
    ),
    "nemotron-3": _PARAMETERS,
    "nemotron-3-ultra": _PARAMETERS,
    "nemotron-3.5": _PARAMETERS,
    "gemma4": Family(
        think=("<|channel>thought", "<channel|>"),
        thinking_ends="\n<channel|>",
        opens=("<|tool_call>",),
        closes=("<tool_call|>",),
        begins=r"(?<!<\|tool_call>)(?<![\w.])call:[\w.-]+\{",
        headers=("<|tool_response>",),
        quote='<|"|>',
        costs="channels",
    ),
    "hy3": Family(
        think=("<think:opensource>", "</think:opensource>"),
        thinking_ends="</think:opensource>",
        opens=("<tool_call:opensource>",),
        closes=("</tool_call:opensource>",),
        sections=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        arguments=Pairs(
            key=("<arg_key:opensource>", "</arg_key:opensource>"),
            value=("<arg_value:opensource>", "</arg_value:opensource>"),
            separator="<tool_sep:opensource>",
        ),
    ),
    "inkling": Family(
        rethinks=True,
        think=("<|content_thinking|>", "<|end_message|>"),
        opens=("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
        closes=(),
        form_begins="<|message_model|>",
        lead="<|message_model|>",
        begins=r'<\|message_model\|>(?:[^<]|<(?!\|))*+(?=<\|end_message\|>|\Z)|(?:\A|(?<=<\|end_message\|>))[\w.-]+\s*\{\s*"name"\s*:',
        bodies=r"(?:<\|end_message\|>|\A)(?:<\|message_model\|>)?<\|content_text\|>(.*?)(?=<\|end_message\|>|\Z)",
    ),
    "laguna-xs.2": _LAGUNA,
    "laguna-xs-2.1": _LAGUNA,
    "laguna-s-2.1": _LAGUNA,
    "laguna-m.1": _LAGUNA,
}
"""By the library's name of the renderer."""
