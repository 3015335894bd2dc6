"""vLLM's tool parsers as parsers of toolrl: `vllm/hermes`, `vllm/kimi_k2` and so on, under vLLM's names.

They are vLLM's code, and read a turn as vLLM's server would: what it passes over in silence there would be a lost call
here. So whatever they raise becomes one malformed call, and so does a turn that has a call's opening mark and gives no
call, and one too long for code that needn't be linear. vLLM doesn't say where a call stood: spans are found by the
calls' names.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, Literal

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, ToolParser
from toolrl.types import CallError, ParsedTurn, Span, ToolCall, ToolSpec
from toolrl_common.parsing.jsonvalue import JsonFault, read_json
from toolrl_common.tokenizers import parser_tokenizer
from toolrl_plugin_vllm import packages
from toolrl_plugin_vllm.options import VllmParserOptions

LONGEST = 65_536
"""Characters of a turn that is read."""
_CLOSED = "</think>"


class VllmParser(ToolParser):
    """A `ToolParser` around one of vLLM's. Stateless: each turn is read by a parser made for it."""

    def __init__(self, options: VllmParserOptions | None, context: BuildContext) -> None:
        options = options or VllmParserOptions()
        self._where = context.where or "parser"
        self.name = context.name.rpartition("/")[2]
        tokenizer = parser_tokenizer(options.tokenizer, context, f"vLLM's parser {self.name!r}")
        self._form = f"the form {self.name!r}"
        self._kind = self._find()
        # Each parser asks for the vocabulary, which takes a tokenizer a tenth of a second to make.
        vocabulary = tokenizer.get_vocab()
        self._tokenizer = copy.copy(tokenizer)
        self._tokenizer.get_vocab = lambda: vocabulary
        self._marks = self._try()

    def _find(self) -> Any:
        packages.prepare_environment()
        try:
            from vllm.tool_parsers import ToolParserManager

            return ToolParserManager.get_tool_parser(self.name)
        except KeyError as error:
            raise ConfigError(f"vLLM has no tool parser {self.name!r}", where=self._where) from error
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"vLLM's parser {self.name!r} can't be imported: {error}", where=self._where, hint=packages.INSTALL
            ) from error

    def _try(self) -> tuple[str, ...]:
        """Read an empty turn; gives the marks that open a call. Raises ConfigError where that fails."""
        try:
            made, request = self._made(())
            made.extract_tool_calls("", request)
        except Exception as error:
            raise ConfigError(
                f"vLLM's parser {self.name!r} can't be used with this tokenizer: {type(error).__name__}: {error}",
                where=self._where,
                hint="It reads the calls of a model whose tokenizer has marks of its own for them.",
            ) from error
        return tuple(
            {
                value
                for name, value in [*vars(type(made)).items(), *vars(made).items()]
                if isinstance(value, str) and len(value) > 3 and "call" in name and ("start" in name or "begin" in name)
            }
        )

    # The protocol.

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Thinking up to the last `</think>` is kept from vLLM, whose parsers would find drafts in it."""
        thought = text.rfind(_CLOSED) + len(_CLOSED) if _CLOSED in text else 0
        reasoning = text[: thought - len(_CLOSED)].removeprefix("<think>").strip() if thought else None
        if not thought and (prefilled_thinking or text.lstrip().startswith("<think>")):
            return ParsedTurn(reasoning=text.strip())
        body = text[thought:]
        if len(body) > LONGEST:
            return self._unreadable(text, thought, reasoning)
        try:
            made, request = self._made(tools)
            found = made.extract_tool_calls(body, request)
            calls = [(call.function.name, call.function.arguments) for call in found.tool_calls or ()]
            content = found.content or ""
            if not isinstance(content, str) or not all(isinstance(name, str) for name, _ in calls):
                raise TypeError("a name or the content is no text")
        except Exception:  # noqa: BLE001 - a parser is total, whatever vLLM's does
            return self._unreadable(text, thought, reasoning)
        if not calls:
            if any(mark in body for mark in self._marks):
                return self._unreadable(text, thought, reasoning, "unclosed" if finish == "length" else "malformed")
            return _final(text, thought, reasoning)
        items = tuple(
            self._item(name, arguments, text, span)
            for (name, arguments), span in zip(calls, _spans(text, thought, calls), strict=True)
        )
        return ParsedTurn(items, content, reasoning, status="calls")

    # Putting a turn together.

    def _made(self, tools: Sequence[ToolSpec]) -> tuple[Any, Any]:
        """A new parser and the request of these tools."""
        request = _request(tools)
        return self._kind(self._tokenizer, request.tools), request

    def _item(self, name: str, arguments: Any, text: str, span: Span) -> ToolCall | CallError:
        raw = text[slice(*span)]
        if not name.strip():
            return CallError("missing_name", f"The call names no tool, in {self._form}.", span=span, raw=raw)
        written = arguments.strip() if isinstance(arguments, str) else ""
        value = read_json(written)
        if isinstance(value, JsonFault) or written[value[1] :] or not isinstance(value[0], dict):
            why = "The arguments are no JSON object"
            return CallError("bad_arguments", f"{why}, in {self._form}.", name, span=span, raw=raw)
        return ToolCall(name, value[0], span=span, raw=raw)

    def _unreadable(self, text: str, start: int, reasoning: str | None, kind: str = "malformed") -> ParsedTurn:
        message = f"The turn can't be read as a call in {self._form}. Write the call again, in full."
        error = CallError(kind, message, span=(start, len(text)), raw=text[start:])
        return ParsedTurn((error,), reasoning=reasoning, status="calls")


def _final(text: str, start: int, reasoning: str | None) -> ParsedTurn:
    spans = ((start, len(text)),) if start < len(text) else ()
    return ParsedTurn(content=text[start:], reasoning=reasoning, content_spans=spans)


def _request(tools: Sequence[ToolSpec]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    functions = [json.loads(json.dumps(tool.as_function())) for tool in tools]
    return ChatCompletionRequest(model="model", messages=[], tools=functions or None)


def _spans(text: str, start: int, calls: Sequence[tuple[str, Any]]) -> list[Span]:
    """Where the calls stand: each from the line of its name on, in order and without overlap."""
    cuts, position = [], start
    for name, _ in calls:
        found = text.find(name, position)
        place = found if found >= 0 else position
        cuts.append(max(text.rfind("\n", position, place) + 1, position) if cuts else start)
        position = place + (len(name) if found >= 0 else 0)
    return list(zip(cuts, [*cuts[1:], len(text)], strict=True))
