"""Where a template's assistant turns begin and end.

A probe at the end of an assistant's turn is found again in the rendered text. What follows it is the rest of a call's
syntax (`close`), then what ends the turn, then the messages after it. Most templates end a turn with a mark of its
own (`<|im_end|>`); some have none, and the next message's header ends the turn (GLM's `<|user|>` and
`<|observation|>`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.abilities import ANSWER, PROBE, QUESTION, RESULT, TOOL, probe_call
from toolrl_plugin_chat.codec import Codec
from toolrl_plugin_chat.control import alternatives
from toolrl_plugin_chat.conversation import Conversation
from toolrl_plugin_chat.rendering import NAMELESS, Dict, Renderer, call_id
from toolrl_plugin_chat.tokens import model_end_ids, turn_end_ids

_RESULT = Message("tool", RESULT, tool_call_id=call_id(0), name=TOOL.name)
_WAY_OUT = (
    "Give a template that can be continued (`options: {chat_template: FILE.jinja}`), try "
    "`options: {preamble: always}`, or lay prompts out as text with `chat_format: plain`."
)


class TurnEnds:
    """Ends of one template's turns. All is found at construction; raises ChatFormatError where it can't be found."""

    def __init__(
        self, render: Renderer, codec: Codec, conversation: Conversation, turn_end: Sequence[str], where: str
    ) -> None:
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
        self.headers_end = not self.mark(self._final) and not self.mark(self._middle)
        """Turns have no end mark of their own; the next message's header ends them."""
        self._close = self._find_close() if conversation.native_calls else ""
        self._marks = self._find_marks()
        self._closing = self._added_in(self._final) | self._added_in(self._middle)
        self._headers = self._find_headers()
        self.ids = tuple(dict.fromkeys([*self._find_ids(), *turn_end_ids(codec, turn_end, where)]))
        """Ids that end a turn."""

    # What ends a turn.

    def _find_generation_prompt(self) -> str:
        without = self._render.attempt([self._user]) or ""
        with_prompt = self._render([self._user], generation_prompt=True)
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""

    def _ends_of(self, calls: Sequence[ToolCall]) -> tuple[str, str]:
        """What follows the probe in a last turn: at the end of a conversation, and before a generation prompt."""
        turn = self.probe_turn(calls)
        final, middle = (self._after_probe(turn, generation_prompt=prompt) for prompt in (False, True))
        if not self._generation_prompt or not middle.endswith(self._generation_prompt):
            return final, final
        return final, middle[: -len(self._generation_prompt)]

    def _find_close(self) -> str:
        """The rest of a call's syntax after its last argument."""
        final, middle = self._ends_of([probe_call()])
        text = middle or final
        if not text:
            raise self.unbridgeable("it shows an assistant's call only where a result follows")
        for end in (self._middle, self._final):
            if end and text.endswith(end):
                return text[: -len(end)]
        if self.headers_end:
            return text
        marks = list(self._added.finditer(text)) if self._added else []
        if not marks:
            raise self.unbridgeable(f"a turn with a call ends in ordinary text, {text!r}")
        return text[: marks[-1].start()]

    def _find_marks(self) -> frozenset[int]:
        ends = [self._final, self._middle]
        if self._conversation.native_calls:
            ends += [text[len(self._close) :] for text in self._ends_of([probe_call()]) if text.startswith(self._close)]
        marks = [self.mark(end) for end in ends]
        return frozenset(self._codec.added[mark.group()] for mark in marks if mark)

    def _find_ids(self) -> list[int]:
        inner = self._find_inner_marks()
        ids = [mark for mark in self._marks if mark not in inner]
        if self.headers_end:
            headers = [self.header([Message("user", PROBE)])]
            if self._conversation.native_calls:
                headers.append(self.header([_RESULT]))
            ids += [self._codec.added[header] for header in headers]
        return [*ids, *model_end_ids(self._codec, self._where)]

    def _find_inner_marks(self) -> set[int]:
        """Marks that stand within a turn that thinks and answers: gpt-oss ends its analysis with `<|end|>`, which also
        ends an answer of history. A model that samples one hasn't ended its turn."""
        turn = self._conversation.plain_dicts([Message("assistant", ANSWER, reasoning=PROBE)])
        text = self._render.attempt([self._user, *turn]) or ""
        return self._added_in(text.partition(PROBE)[2].partition(ANSWER)[0])

    def _added_in(self, text: str) -> set[int]:
        return {self._codec.added[match.group()] for match in self._added.finditer(text)} if self._added else set()

    def _find_headers(self) -> set[int]:
        """Marks that belong to the message behind them, so that another mark doesn't make them superfluous."""
        following = [_RESULT, replace(_RESULT, tool_call_id=call_id(1))]
        self.after_turn(following[:1], [TOOL], generation_prompt=True)
        text = self.after_turn([Message("user", RESULT)], [TOOL], generation_prompt=False)
        before = text.partition(RESULT)[0].strip()
        opening, _, closing = (self._render.attempt([self._user]) or "").partition(QUESTION)
        if opening.rstrip().endswith(before) and self._first(text) not in closing:
            # A conversation begins with it, too, as with GLM's `<|user|>`; results have such a header then as well.
            return {self._codec.added[self._first(text)], *self._marks}
        if self._conversation.native_calls and self._conversation.parallel:
            text = self.after_turn(following, [TOOL], generation_prompt=False)
            mark = self._first(text)
            if text.count(mark) > 1 and mark not in text.rpartition(RESULT)[2]:
                # Each of two results has one, as with Gemma's `<|tool_response>`.
                return {self._codec.added[mark]}
        return set()

    def header(self, messages: Sequence[Message]) -> str:
        """The mark with which these messages begin, where there is no end mark before it."""
        return self._first(self.after_turn(messages, [TOOL], generation_prompt=True))

    def _first(self, text: str) -> str:
        """The mark that a text of `after_turn` begins with."""
        mark = self.mark(text)
        if mark is None:
            raise self.unbridgeable(f"its turns end in ordinary text, {text[:20]!r}")
        return mark.group()

    def mark(self, text: str) -> re.Match[str] | None:
        """The first added token of a text, nothing but white space before it."""
        match = self._added.search(text) if self._added else None
        return match if match is not None and not text[: match.start()].strip() else None

    def last_part(self, text: str) -> str:
        """`text` from its last added token on: what a tokenizer may merge with what comes behind it."""
        marks = list(self._added.finditer(text)) if self._added else []
        return text[marks[-1].start() :] if marks else text

    # Going on from a turn.

    def after_turn(self, messages: Sequence[Message], specs: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The text behind an assistant's turn that `messages` follow: what ends it, and they."""
        calls = self._synthetic_calls(messages)
        dicts = [*self.opening(specs), self.probe_turn(calls), *self._conversation.plain_dicts(messages)]
        text = self._render(dicts, self._conversation.native_tools(specs), generation_prompt=generation_prompt)
        # A later message may hold the probe's text by chance; the first one is the turn's.
        _, shown, behind = text.partition(PROBE)
        if not shown:
            raise self.unbridgeable("it shows an assistant's text 0 times")
        close = self._close if calls else ""
        if calls:
            # Some templates write a call's id behind its arguments.
            close = close.replace(call_id(0), self._conversation.abilities.shape.id_of(calls[-1].id, 0))
        if not behind.startswith(close):
            raise self.unbridgeable("what it writes for a call depends on the messages that follow it")
        end = behind[len(close) :]
        if messages:
            self._first(end)
        return end

    def skip_mark(self, sampled_ids: Sequence[int], ids: list[int]) -> list[int]:
        """`ids` of a text from `after_turn`, without the end mark where the sampled turn brought its own."""
        last = sampled_ids[-1] if sampled_ids else None
        if last not in self.ids and last not in self._marks:
            return ids
        index = next((index for index, token_id in enumerate(ids) if self._codec.is_added(token_id)), None)
        if index is None:
            return ids
        for place in range(index, len(ids)):
            # A turn may be closed by two marks in a row.
            if ids[place] == last:
                return ids[place + 1 :]
            if ids[place] not in self._closing:
                break
        either_will_do = last not in self._headers and ids[index] in self._marks - self._headers
        return ids[index + 1 :] if either_will_do else ids

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
                message.name or NAMELESS,
            )
            for index, message in enumerate(answered)
        ]
        return calls if self._conversation.parallel else calls[-1:]

    def opening(self, specs: Sequence[ToolSpec]) -> list[Dict]:
        """A made-up conversation up to its first turn."""
        return self._conversation.dicts([Message("user", QUESTION)], specs)

    def probe_turn(self, calls: Sequence[ToolCall]) -> Dict:
        """A turn that ends with the probe."""
        content = "" if calls else PROBE
        return self._conversation.plain_dicts([Message("assistant", content, tool_calls=tuple(calls))])[0]

    def _after_probe(self, turn: Dict, *, generation_prompt: bool) -> str:
        """What a template that takes this turn behind a question writes after the probe; empty where it refuses."""
        text = self._render.attempt([self._user, turn], self._probe_tools, generation_prompt=generation_prompt)
        if text is not None and text.count(PROBE) != 1:
            raise self.unbridgeable(f"it shows an assistant's text {text.count(PROBE)} times")
        return (text or "").partition(PROBE)[2]

    # Control tokens.

    def structural_tokens(self) -> set[str]:
        """Added tokens that the template writes between the messages of a conversation without tools or thinking."""
        if self._added is None:
            return set()
        turns = [self._user, self.probe_turn([]), self._user]
        text = self._render.attempt(turns, generation_prompt=True) or ""
        found = {match.group() for match in self._added.finditer(text)}
        return {token for token in found if "think" not in token.lower()}

    def plain_marks(self) -> set[str]:
        """Ordinary text that alone separates messages: between a question and its answer where no added token stands
        there, and in front of a question where none stands that also begins the first one."""
        turns = [self._user, self.probe_turn([]), *self._conversation.plain_dicts([Message("user", ANSWER)])]
        text = self._render.attempt(turns, generation_prompt=True) or ""
        start, _, rest = text.partition(QUESTION)
        question_end, _, rest = rest.partition(PROBE)
        answer_end, _, _ = rest.partition(ANSWER)
        found = {question_end} if not self._added_in(question_end) else set()
        if not self._added_in(start) & self._added_in(answer_end):
            found.add(self._added.split(answer_end)[-1] if self._added else answer_end)
        return found

    def unbridgeable(self, reason: str) -> ChatFormatError:
        """The error with the reason why this template has no bridge, and the ways out."""
        return ChatFormatError(
            f"the chat template can't be continued turn by turn: {reason}", where=self._where, hint=_WAY_OUT
        )
