"""Conversations of data rows: every public form is read, and nothing in one is dropped without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin import datasets
from toolrl.builtin.options import FileDatasetOptions
from toolrl.chat.conversation import in_call_order, read_messages
from toolrl.chat.row_remarks import collected, notes
from toolrl.errors import DataError
from toolrl.loop.data import CheckedTasks
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task, ToolCall

USER = {"role": "user", "content": "1 + 2 and 3 * 4?"}
BYE = {"role": "assistant", "content": "3 and 12"}


def calls(*ids: str | None, names: Sequence[str] = ("add", "multiply")) -> dict[str, Any]:
    made = [
        {**({"id": id_} if id_ else {}), "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in zip(ids, names, strict=False)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def answer(content: str, id_: str | None = None, name: str | None = None) -> dict[str, Any]:
    given = {"tool_call_id": id_, "name": name}
    return {"role": "tool", "content": content, **{key: value for key, value in given.items() if value}}


def of(item: dict[str, Any]) -> Message:
    (message,) = read_messages([item])
    return message


def contents(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "tool"]


class TestAnswersAndCalls:
    @pytest.mark.parametrize(
        "turn",
        [
            [calls("a", "b"), answer("12", "b"), answer("3", "a")],
            [calls("a", "b"), answer("12", "b"), answer("3")],
            [calls("a", None), answer("12"), answer("3", "a")],
            [calls(None, None), answer("12", name="multiply"), answer("3", name="add")],
            [calls(None, None), answer("3", name="add"), answer("12")],
            [calls(None, None), answer("3"), answer("12")],
        ],
    )
    def test_answers_stand_in_the_order_of_their_calls(self, turn: list[dict[str, Any]]) -> None:
        messages = read_messages([USER, *turn, BYE, USER, *turn])
        assert contents(messages) == ["3", "12"] * 2
        assert read_messages(messages) == messages, "messages that were read can be read again"

    @pytest.mark.parametrize(
        ("turn", "says"),
        [
            ([calls("a"), answer("3", "z")], r"\[2\].tool_call_id' is 'z'.*one of a"),
            ([calls("a", "b"), answer("3", "a"), answer("4", "a")], r"\[3\]' answers the call 'a' a second time"),
            ([calls("a", "a"), answer("3", "a"), answer("4", "a")], "one id twice"),
            ([calls("a", "b"), answer("3", "a")], r"\[1\].tool_calls\[1\]' \(multiply\) has no answer"),
            ([calls("a")], r"\[1\].tool_calls\[0\]' \(add\) has no answer"),
            ([calls("a"), answer("3", "a"), answer("4")], r"\[3\]' answers a call that messages\[1\] doesn't make"),
            ([calls(None), answer("3", name="divide")], r"\[2\]' answers the tool 'divide'"),
            ([answer("3")], r"\[1\]' is a tool's answer and follows no assistant message"),
            ([BYE, answer("3", "a")], r"\[2\].tool_call_id' is 'a', and messages\[1\] has no tool_calls"),
        ],
    )
    def test_an_answer_and_a_call_without_each_other_are_refused(self, turn: list[dict[str, Any]], says: str) -> None:
        with pytest.raises(DataError, match=says):
            read_messages([USER, *turn, USER])

    def test_a_conversation_may_end_with_calls(self) -> None:
        assert len(read_messages([USER, calls("a", "b")])[1].tool_calls) == 2

    def test_calls_in_the_assistants_text_are_remarked_on(self) -> None:
        text = {"role": "assistant", "content": '<tool_call>{"name": "add", "arguments": {}}</tool_call>'}
        with collected() as found:
            assert contents(read_messages([USER, text, answer("3"), BYE])) == ["3"]
        assert "has no tool_calls" in notes(found)[0]

    def test_messages_made_in_python_are_bound_as_well(self) -> None:
        said = Message("assistant", tool_calls=(ToolCall("add", {}, id="a"), ToolCall("multiply", {}, id="b")))
        answers = [Message("tool", "12", tool_call_id="b"), Message("tool", "3", tool_call_id="a")]
        assert contents(read_messages([Message("user", "?"), said, *answers])) == ["3", "12"]
        with pytest.raises(DataError, match="has no answer"):
            read_messages([Message("user", "?"), said, Message("user", "?")])
        with pytest.raises(DataError, match=r"role' is 'bot'"):
            read_messages([Message("bot", "?")])  # type: ignore[arg-type]

    def test_a_request_is_put_in_order_and_never_refused(self) -> None:
        said = Message("assistant", tool_calls=tuple(ToolCall("f", {}, id=id_) for id_ in "abc"))
        answers = [Message("tool", id_, tool_call_id=id_) for id_ in "czab"]
        assert contents(in_call_order([Message("user"), said, *answers])) == ["c", "z", "a", "b"]
        assert contents(in_call_order([Message("user"), said, *answers[2:], answers[0]])) == ["a", "b", "c"]
        assert contents(in_call_order([said, answers[0], *answers[2:]])) == ["a", "b", "c"]


class TestForms:
    @pytest.mark.parametrize(
        "value",
        [
            "1 + 2 and 3 * 4?",
            json.dumps([USER]),
            f"\n {json.dumps([USER], indent=2)}\n",
            json.dumps([{"content": USER["content"], "role": "user"}]),
            [{"from": "human", "value": USER["content"]}],
            json.dumps([{"from": "human", "value": USER["content"]}]),
            [{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}],
            [Message("user", USER["content"])],
            [USER | {"tool_calls": "", "weight": None, "refusal": None, "annotations": [], "name": ""}],
        ],
    )
    def test_a_question_in_every_form(self, value: Any) -> None:
        with collected() as found:
            (message,) = read_messages(value)
        assert (message.role, message.content) == ("user", USER["content"])
        assert not found

    @pytest.mark.parametrize(
        "text",
        [
            f"{json.dumps([USER])} How many messages?",
            f"[{USER}] How many messages?",
            "[1, 2, 3]",
            '[{"a": 1}] is a list. What is its length?',
            '{"role": "user"}',
            "[{x}]",
            "[[1]]",
            '[{"a": 1}]',
        ],
    )
    def test_a_question_that_is_json_stays_a_question(self, text: str) -> None:
        assert read_messages(text) == (Message("user", text),)

    @pytest.mark.parametrize(
        "text", [str([USER, BYE]), json.dumps([USER])[:-2] + "]", f"[{USER}\n {BYE}]", json.dumps([USER, BYE])[:60]]
    )
    def test_messages_as_text_that_is_not_json_are_refused(self, text: str) -> None:
        with pytest.raises(DataError, match=r"'messages' is .*aren't JSON") as caught:
            read_messages(text)
        assert "json.dumps" in (caught.value.hint or "")
        with pytest.raises(DataError, match="expected a text or a list of messages"):
            read_messages(json.dumps(USER))

    def test_sharegpt(self) -> None:
        rows = [("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello."), ("human", "Bye")]
        messages = read_messages([{"from": who, "value": text} for who, text in rows])
        assert [(it.role, it.content) for it in messages] == [
            ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"),
        ]  # fmt: skip
        with pytest.raises(DataError, match=r"\[0\].from' is 'observation'"):
            read_messages([{"from": "observation", "value": "3"}])

    def test_openais_other_names(self) -> None:
        messages = read_messages(
            [
                {"role": "developer", "content": "Be brief."},
                USER,
                {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
                {"role": "function", "name": "add", "content": "3"},
                {"role": "assistant", "thinking": "So.", "content": "3"},
            ]
        )
        assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert messages[2].tool_calls == (ToolCall("add", {"a": 1}),)
        assert messages[4].reasoning == "So."

    @pytest.mark.parametrize("arguments", [None, "", " ", "{}", {}])
    def test_no_arguments(self, arguments: Any) -> None:
        call = {"function": {"name": "now", "arguments": arguments}}
        assert of({"role": "assistant", "tool_calls": [call]}).tool_calls == (ToolCall("now", {}),)

    def test_calls_as_json_text(self) -> None:
        made = calls("a", "b")
        assert of({**made, "tool_calls": json.dumps(made["tool_calls"])}) == of(made)

    @pytest.mark.parametrize(
        ("message", "says"),
        [
            ({"role": "user"}, "content' is missing; the message has: role"),
            ({"role": "assistant", "text": "Hi"}, "content' is missing; the message has: role, text"),
            ({"role": "assistant", "tool_calls": []}, "content' is missing"),
            ({"role": "assistant", "tool_calls": [{"name": "f", "args": {}}]}, r"\[0\]' has no 'arguments'"),
            ({"role": "assistant", "content": "", "weight": 0.5}, "weight' is 0.5, expected 0 or 1"),
            ({"role": "assistant", "content": "", "loss": "no"}, "loss' is 'no', expected 0 or 1"),
            ({"role": "assistant", "content": "", "reasoning": "a", "thinking": "b"}, "differ"),
            ({"role": "user", "content": [{"type": "image", "image": "a.png"}]}, "expected {'type': 'image'} alone"),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, message: dict[str, Any], says: str) -> None:
        with pytest.raises(DataError, match=says):
            of(message)

    @pytest.mark.parametrize(("key", "value"), [("weight", 0), ("weight", 0.0), ("loss", False), ("train", False)])
    def test_a_weight_of_0_takes_a_message_out_of_the_loss(self, key: str, value: Any) -> None:
        assert not of({**BYE, key: value}).trained
        assert of({**BYE, key: True}).trained

    @pytest.mark.parametrize(
        ("message", "key"),
        [
            ({**BYE, "loss_scale": 0.5}, "loss_scale"),
            ({**USER, "weight": 1}, "weight"),
            ({**USER, "reasoning": "Hm."}, "reasoning"),
            ({**USER, "tool_call_id": "a"}, "tool_call_id"),
            ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}, "result": "3"}]}, "result"),
        ],
    )
    def test_a_key_without_effect_is_remarked_on(self, message: dict[str, Any], key: str) -> None:
        with collected() as found:
            of(message)
        (line,) = notes(found)
        assert "messages[0]" in line
        assert key in line
        assert "has no effect" in line


class TestDataSets:
    """The check of a run's data, whatever the data set."""

    def write(self, path: Path, *rows: Any) -> datasets.FileDataset:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return datasets.jsonl(FileDatasetOptions(path=str(path)), BuildContext("jsonl"))

    @pytest.mark.parametrize("where", ["data.train", "data.eval"])
    def test_a_solution_in_the_prompt_is_refused(self, tmp_path: Path, where: str) -> None:
        """open-r1#131."""
        row = {"prompt": "1 + 2?", "answer": "3", "messages": [USER, BYE]}
        source = self.write(tmp_path / "a.jsonl", row, {"messages": [USER, {**BYE, "tool_calls": []}]})
        for index in range(2):
            with pytest.raises(DataError, match="end with the assistant's") as caught:
                CheckedTasks(source, {"default": None}, where)[index]
            assert caught.value.where == f"{tmp_path / 'a.jsonl'}:{index + 1}"
        assert "fields: {prompt: prompt}" in (caught.value.hint or "")
        assert CheckedTasks(source, {"default": None}, "sft.data")[0].messages[-1].content == BYE["content"]

    def test_what_is_no_demonstration_is_refused_before_a_model_is_loaded(self, tmp_path: Path) -> None:
        silent = {"messages": [USER, {**BYE, "weight": 0}]}
        source = self.write(tmp_path / "a.jsonl", {"prompt": "?"}, {"messages": [USER, BYE, BYE]}, silent)
        tasks = CheckedTasks(source, {"default": None}, "sft.data")
        for index, says in enumerate(["is no demonstration", "two assistant messages follow", "weight"]):
            with pytest.raises(DataError, match=says):
                tasks[index]

    def test_tasks_made_in_python_go_through_the_check(self) -> None:
        said = calls("a", "b")
        swapped = (USER, said, answer("12", "b"), answer("3", "a"))
        source = [
            Task("a", swapped),  # type: ignore[arg-type]
            Task("b", (Message("user", "?"), Message("assistant", "!"))),
            Task("c", ()),
        ]
        tasks = CheckedTasks(source, {"default": None}, "data.train")
        assert contents(tasks[0].messages) == ["3", "12"]
        with pytest.raises(DataError, match="end with the assistant's") as caught:
            tasks[1]
        assert caught.value.where == "data.train, row 1 (counted from 0)"
        assert tasks[2].messages == (), "an environment may ask the question"

    def test_a_remark_is_logged_once_with_the_place_of_the_first_row(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = {"messages": [{**USER, "mood": "good", "time": 3}], "prompt": "1 + 2?"}
        source = self.write(tmp_path / "a.jsonl", {"prompt": "?"}, odd, odd)
        tasks = CheckedTasks(source, {"default": None}, "data.train")
        assert [tasks[index].id for index in (0, 1, 2, 1)] == ["a-0", "a-1", "a-2", "a-1"]
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 3
        assert all(line.startswith(f"{tmp_path / 'a.jsonl'}:2: ") for line in lines)
        for said in ("'messages' is read and 'prompt' isn't", "'messages[0].mood'", "'messages[0].time'"):
            assert sum(said in line for line in lines) == 1

    @pytest.mark.parametrize(
        ("rows", "tools", "says"),
        [
            ([[], [{"type": "function", "function": {"name": "f"}}]], [None, None], "holds schemas"),
            ([[], ["a"]], [(), ("a",)], None),
            ([[], []], [(), ()], "the task has no tools"),
            (['["a"]', "[]"], [("a",), ()], None),
            (['[{"name": "f"}]', "[]"], [None, None], "holds schemas"),
            (["a, b"], [None], "no list of tool names"),
        ],
    )
    def test_a_column_of_tools(self, tmp_path: Path, rows: list[Any], tools: list[Any], says: str | None) -> None:
        source = self.write(tmp_path / "a.jsonl", *({"prompt": "?", "tools": value} for value in rows))
        with collected() as found:
            assert [source[index].tools for index in range(len(rows))] == tools
        assert bool(found) == bool(says)
        assert not says or says in notes(found)[0]

    def test_what_is_not_the_question_stays_for_rewards(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "?", "messages": [USER, BYE], "images": "a.png"}))
        options = FileDatasetOptions(path=str(tmp_path / "a.jsonl"), fields={"prompt": "prompt"})  # type: ignore[arg-type]
        with collected() as found:
            task = datasets.jsonl(options, BuildContext("jsonl"))[0]
        assert task.messages == (Message("user", "?"),)
        assert task.extra == {"messages": [USER, BYE]}
        assert "'images' is 'a.png', no list of images" in notes(found)[0]

    def test_a_context_follows_the_question(self, tmp_path: Path) -> None:
        rows = [{"instruction": "Sort.", "input": text, "output": "1 2"} for text in ("2 1", "", None)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        fields = {"prompt": "instruction", "context": "input", "answer": "output"}
        options = FileDatasetOptions(path=str(tmp_path / "a.jsonl"), fields=fields)  # type: ignore[arg-type]
        source = datasets.jsonl(options, BuildContext("jsonl"))
        assert [source[index].messages[0].content for index in range(3)] == ["Sort.\n\n2 1", "Sort.", "Sort."]
        assert source[0].extra == {}

    @pytest.mark.parametrize("line", ['{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "x": [{"y": 1, "y": 2}]}'])
    def test_a_duplicate_key_is_refused(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "a.jsonl").write_text(line)
        with pytest.raises(DataError, match="duplicate key '(prompt|y)'") as caught:
            datasets.jsonl(FileDatasetOptions(path=str(tmp_path / "a.jsonl")), BuildContext("jsonl"))[0]
        assert caught.value.where == f"{tmp_path / 'a.jsonl'}:1"

    def test_an_answer_that_is_nan_is_absent(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"prompt": "?", "answer": NaN}')
        assert (
            datasets.jsonl(FileDatasetOptions(path=str(tmp_path / "a.jsonl")), BuildContext("jsonl"))[0].answer is None
        )
