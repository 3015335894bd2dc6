"""Where a template's assistant turns begin and end.

A probe at the end of an assistant's turn is found again in the rendered text. What follows it is the rest of a call's
syntax (`close`), then what ends the turn, then the messages after it. Most templates end a turn with a mark of its
own (`<|im_end|>`); some have none, and the next message's header ends the turn (GLM's `<|user|>` and
`<|observation|>`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolrl.chat.abilities import PROBE, QUESTION, RESULT, TOOL, probe_call
from toolrl.chat.codec import Codec
from toolrl.chat.control import alternatives
from toolrl.chat.conversation import Conversation
from toolrl.chat.preamble import thought
from toolrl.chat.rendering import Dict, Renderer, call_id
from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec

_WAY_OUT = (
    "Give a template that can be continued (`options: {chat_template: FILE.jinja}`), try "
    "`options: {preamble: always}`, or lay prompts out as text with `chat_format: plain`."
)


class TurnEnds:
    """Ends of one template's turns. All is found at construction; raises ChatFormatError where it can't be found."""

    def __init__(self, render: Renderer, codec: Codec, conversation: Conversation, where: str) -> None:
        self._render = render
        self._codec = codec
        self._conversation = conversation
        self._where = where
        words = [text for text in codec.added if text.strip()]
        self._added = re.compile(alternatives(words)) if words else None
        self._probe_tools = conversation.native_tools([TOOL])
        self._user = conversation.plain_dicts([Message("user", QUESTION)])[0]
        self._generation_prompt = self._find_generation_prompt()
        self._final, self._middle = self._ends_of([])
        self.headers_end = not self._mark(self._final) and not self._mark(self._middle)
        """Turns have no end mark of their own; the next message's header ends them."""
        self._close = self._find_close() if conversation.native_calls else ""
        self._marks = self._find_marks()
        self._pure_marks = self._marks - self._find_headers()
        self.ids = self._find_ids()
        """Ids that end a turn."""

    # What ends a turn.

    def _find_generation_prompt(self) -> str:
        without = self._render.attempt([self._user]) or ""
        with_prompt = self._render([self._user], generation_prompt=True)
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""

    def _ends_of(self, calls: Sequence[ToolCall]) -> tuple[str, str]:
        """What follows the probe in a last turn: at the end of a conversation, and before a generation prompt."""
        turn = self._probe_turn(calls)
        final = self._after_probe([self._user, turn], generation_prompt=False)
        middle = self._after_probe([self._user, turn], generation_prompt=True)
        if middle is None or not self._generation_prompt or not middle.endswith(self._generation_prompt):
            middle = final
        else:
            middle = middle[: -len(self._generation_prompt)]
        return final or "", middle or ""

    def _find_close(self) -> str:
        """The rest of a call's syntax after its last argument."""
        final, middle = self._ends_of([probe_call()])
        text = middle or final
        if not text:
            raise self._unbridgeable("it shows an assistant's call only where a result follows")
        for end in (self._middle, self._final):
            if end and text.endswith(end):
                return text[: -len(end)]
        if self.headers_end:
            return text
        marks = list(self._added.finditer(text)) if self._added else []
        if not marks:
            raise self._unbridgeable(f"a turn with a call ends in ordinary text, {text!r}")
        return text[: marks[-1].start()]

    def _find_marks(self) -> frozenset[int]:
        ends = [self._final, self._middle]
        if self._conversation.native_calls:
            ends += [text[len(self._close) :] for text in self._ends_of([probe_call()]) if text.startswith(self._close)]
        marks = [self._mark(end) for end in ends]
        return frozenset(self._codec.added[mark.group()] for mark in marks if mark)

    def _find_ids(self) -> tuple[int, ...]:
        ids = list(self._marks)
        if self.headers_end:
            headers = [self._header([Message("user", PROBE)])]
            if self._conversation.native_calls:
                headers.append(self._header([Message("tool", RESULT, tool_call_id=call_id(0), name=TOOL.name)]))
            ids += [self._codec.added[header] for header in headers]
        eos = self._codec.tokenizer.eos_token_id
        ids += [eos] if eos is not None else []
        return tuple(dict.fromkeys(ids))

    def _find_headers(self) -> frozenset[int]:
        """The tokens right before a user's question and a tool's result. Where one of them ends a turn (GLM), another
        that was sampled in its stead doesn't make it superfluous."""
        result = Message("tool", RESULT, tool_call_id=call_id(0), name=TOOL.name)
        headers = []
        for message in (Message("user", RESULT), result):
            before = self.after_turn([message], [TOOL], generation_prompt=False).partition(RESULT)[0]
            headers += [match.group() for match in self._added.finditer(before)][-1:] if self._added else []
        return frozenset(self._codec.added[header] for header in headers)

    def _header(self, messages: Sequence[Message]) -> str:
        text = self.after_turn(messages, [TOOL], generation_prompt=True)
        mark = self._mark(text)
        if mark is None:
            raise self._unbridgeable(f"its turns end in ordinary text, {text[:20]!r}")
        return mark.group()

    def _mark(self, text: str) -> re.Match[str] | None:
        """The first added token of a text, nothing but white space before it."""
        match = self._added.search(text) if self._added else None
        return match if match is not None and not text[: match.start()].strip() else None

    # Going on from a turn.

    def after_turn(self, messages: Sequence[Message], specs: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The text behind an assistant's turn that `messages` follow: what ends it, and they."""
        calls = self._synthetic_calls(messages)
        dicts = [*self._opening(specs), self._probe_turn(calls), *self._conversation.plain_dicts(messages)]
        text = self._after_probe(
            dicts, self._conversation.native_tools(specs), generation_prompt=generation_prompt, strict=True
        )
        close = self._close if calls else ""
        if text is None or not text.startswith(close):
            raise self._unbridgeable("what it writes for a call depends on the messages that follow it")
        return text[len(close) :]

    def same_without(self, messages: Sequence[Message], specs: Sequence[ToolSpec]) -> bool:
        """Whether `after_turn` gives the same text without the tools."""
        try:
            without = self.after_turn(messages, (), generation_prompt=True)
        except ChatFormatError:
            return False
        return without == self.after_turn(messages, specs, generation_prompt=True)

    def skip_mark(self, sampled_ids: Sequence[int], ids: list[int]) -> list[int]:
        """`ids` of a text from `after_turn`, without the end mark where the sampled turn brought its own."""
        if not sampled_ids or sampled_ids[-1] not in self.ids:
            return ids
        for index, token_id in enumerate(ids):
            if token_id == sampled_ids[-1] or token_id in self._pure_marks:
                return ids[index + 1 :]
            if self._codec.is_added(token_id):
                break
        return ids

    def _synthetic_calls(self, messages: Sequence[Message]) -> list[ToolCall]:
        """Calls that the leading tool messages could be answers to."""
        if not self._conversation.native_calls:
            return []
        answered = []
        for message in messages:
            if message.role != "tool":
                break
            answered.append(message)
        calls = [
            probe_call(
                index,
                PROBE if index == len(answered) - 1 else "",
                message.tool_call_id or "",
                message.name or TOOL.name,
            )
            for index, message in enumerate(answered)
        ]
        return calls if self._conversation.parallel else calls[-1:]

    def _opening(self, specs: Sequence[ToolSpec]) -> list[Dict]:
        return self._conversation.dicts([Message("user", QUESTION)], specs)

    def _probe_turn(self, calls: Sequence[ToolCall]) -> Dict:
        content = "" if calls else PROBE
        return self._conversation.plain_dicts([Message("assistant", content, tool_calls=tuple(calls))])[0]

    def _after_probe(
        self,
        dicts: Sequence[Dict],
        tools: Sequence[Dict] | None = None,
        *,
        generation_prompt: bool,
        strict: bool = False,
    ) -> str | None:
        tools = self._probe_tools if tools is None and not strict else tools
        rendered = self._render if strict else self._render.attempt
        text = rendered(dicts, tools, generation_prompt=generation_prompt)
        if text is None:
            return None
        shown = text.count(PROBE)
        # In earnest a later message may hold the probe's text by chance; the first one is the turn's.
        if shown == 0 or (shown > 1 and not strict):
            raise self._unbridgeable(f"it shows an assistant's text {shown} times")
        return text[text.index(PROBE) + len(PROBE) :]

    # Saying a message.

    def spoken(self, message: Message) -> str:
        """The text of an assistant message from the generation prompt on, end mark included."""
        specs = [ToolSpec(call.name, "") for call in message.tool_calls]
        following = self._answers(message) if self._conversation.native_calls else []
        opening = self._opening(specs)
        dicts = [*opening, *self._conversation.plain_dicts([message, *following])]
        tools = self._conversation.native_tools(specs)
        full = self._render(dicts, tools)
        end = self.after_turn(following, specs, generation_prompt=False)
        if not full.endswith(end):
            raise self._unbridgeable("the end of a turn depends on what it says")
        body = self._body(opening, tools, full[: len(full) - len(end)], message)
        self._nothing_dropped(message, body)
        return body + self._closing(end, following)

    def _closing(self, end: str, following: Sequence[Message]) -> str:
        mark = self._mark(end)
        if mark is not None:
            return end[: mark.end()]
        if self.headers_end:
            return end + self._header([Message("user", PROBE)])
        raise self._unbridgeable(f"a turn that {len(following)} messages follow has no end mark")

    def _answers(self, message: Message) -> list[Message]:
        return [
            Message("tool", RESULT, tool_call_id=call.id or call_id(index), name=call.name)
            for index, call in enumerate(message.tool_calls)
        ]

    def _body(self, opening: list[Dict], tools: list[Dict] | None, text: str, message: Message) -> str:
        """What of `text` comes after the generation prompt, thinking included."""
        prompt = self._render(opening, tools, generation_prompt=True)
        reasoning = message.reasoning
        if reasoning is not None and prompt.rstrip().endswith("</think>"):
            raise ChatFormatError(
                "an assistant message has reasoning, and the generation prompt closes thinking before the model speaks",
                where=self._where,
                hint="Leave reasoning out of the data, or let the template think: see `template_kwargs`.",
            )
        if text.startswith(prompt):
            body = text[len(prompt) :]
            if reasoning is None or reasoning.strip() in body:
                return body
            return thought(reasoning) + body
        plain = self._render([*opening, self._probe_turn([]), self._user], tools)
        header = _common_beginning(prompt, plain)
        rest = prompt[len(header) :]
        if not text.startswith(header):
            raise self._unbridgeable("an assistant's turn begins otherwise than its generation prompt")
        body = text[len(header) :]
        if not rest.strip() or rest.rstrip().endswith("</think>"):
            return body
        if rest.strip() == "<think>":
            return f"{reasoning or ''}\n</think>\n\n{body}"
        raise self._unbridgeable(f"its generation prompt ends in {rest!r}, which no turn begins with")

    def _nothing_dropped(self, message: Message, body: str) -> None:
        """A part that the template leaves out in silence would be a wrong demonstration."""
        lost = [part for part in ("content", "reasoning") if (getattr(message, part) or "").strip() not in body]
        lost += [f"call of {call.name}" for call in message.tool_calls if call.name not in body]
        if lost:
            raise ChatFormatError(
                f"the chat template drops the {' and the '.join(lost)} of an assistant message",
                where=self._where,
                hint="Leave that part out of the data, or give a template that shows it.",
            )

    # Control tokens.

    def structural_tokens(self) -> set[str]:
        """Added tokens that the template writes between the messages of a conversation without tools or thinking."""
        if self._added is None:
            return set()
        turns = [self._user, self._probe_turn([]), self._user]
        text = self._render.attempt(turns, generation_prompt=True) or ""
        found = {match.group() for match in self._added.finditer(text)}
        return {token for token in found if "think" not in token.lower()}

    def _unbridgeable(self, reason: str) -> ChatFormatError:
        return ChatFormatError(
            f"the chat template can't be continued turn by turn: {reason}", where=self._where, hint=_WAY_OUT
        )


def _common_beginning(one: str, other: str) -> str:
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]
