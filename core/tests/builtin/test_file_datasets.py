"""Data sets `jsonl` and `parquet`: what a row becomes, and what a bad one says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.builtin import datasets, rows
from toolrl.builtin.options import FileDatasetOptions
from toolrl.errors import DataError
from toolrl.protocols import BuildContext, iterate
from toolrl.types import Message, ToolCall

CONTEXT = BuildContext(name="jsonl", where="data.train")


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
    return path


def read(path: Path | Sequence[str], **options: Any) -> datasets.FileDataset:
    given = str(path) if isinstance(path, Path) else path
    return datasets.jsonl(FileDatasetOptions(path=given, **options), CONTEXT)


def read_parquet(path: Path, **options: Any) -> datasets.FileDataset:
    return datasets.parquet(FileDatasetOptions(path=str(path), **options), CONTEXT)


VERL_ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "How many?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {
        "index": 3,
        "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}},
        "tool_selection": ["calc_gsm8k_reward"],
    },
}
VERL_FIELDS = {
    "prompt": "prompt",
    "answer": "reward_model.ground_truth",
    "id": "extra_info.index",
    "tools": "extra_info.tool_selection",
    "tools_kwargs": "extra_info.tools_kwargs",
}


class TestPaths:
    def test_a_path_without_rows_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        full, empty = write(tmp_path / "a.jsonl", {"prompt": "?"}), write(tmp_path / "b.jsonl")
        assert len(read([str(full), str(empty)])) == 1
        assert [it.getMessage() for it in caplog.records] == [f"{empty} holds no rows"]

    def test_a_path_behind_the_limit_is_told_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        paths = [str(write(tmp_path / f"{name}.jsonl", {"prompt": "?"}, {"prompt": "!"})) for name in "abc"]
        found = read(paths, limit=4)
        assert len(found) == len(found) == 4
        assert [it.getMessage() for it in caplog.records] == [f"limit 4: no row of {paths[2]} is taken"]

    def test_paths_that_give_rows_are_not(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        paths = [str(write(tmp_path / f"{name}.jsonl", {"prompt": "?"})) for name in "ab"]
        assert len(read(paths, limit=2)) == 2
        assert caplog.records == []


class TestRows:
    def test_a_prompt_becomes_a_user_message(self, tmp_path: Path) -> None:
        task = read(write(tmp_path / "train.jsonl", {"prompt": "2 + 2?", "answer": 4, "level": "easy"}))[0]
        assert task.messages == (Message("user", "2 + 2?"),)
        assert task.answer == 4
        assert task.id == "train-0"
        assert task.extra == {"level": "easy"}
        assert (task.environment, task.tools, task.tools_kwargs) == (None, None, {})

    def test_every_field_is_read(self, tmp_path: Path) -> None:
        row = {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "answer": {"any": ["thing"]},
            "id": 7,
            "environment": "search",
            "tools": ["a", "b"],
            "tools_kwargs": {"a": {"create_kwargs": {"x": None}, "execute_kwargs": None}},
        }
        task = read(write(tmp_path / "a.jsonl", row), environment="other")[0]
        assert [message.role for message in task.messages] == ["system", "user"]
        assert task.answer == {"any": ["thing"]}
        assert task.id == "7"
        assert task.environment == "search"
        assert task.tools == ("a", "b")
        assert task.tools_kwargs == {"a": {"create_kwargs": {"x": None}, "execute_kwargs": {}}}
        assert task.extra == {}

    def test_rows_without_an_environment_take_the_option(self, tmp_path: Path) -> None:
        assert read(write(tmp_path / "a.jsonl", {"prompt": "?"}), environment="other")[0].environment == "other"

    def test_the_option_stands_for_a_named_column_that_is_empty(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"prompt": "?", "task_type": "vault"}, {"prompt": "?"})
        fields = {"environment": "task_type"}
        assert [task.environment for task in iterate(read(path, fields=fields, environment="other"))] == [
            "vault",
            "other",
        ]
        with pytest.raises(DataError, match=r"a.jsonl:2: no value at 'task_type'"):
            read(path, fields=fields)[1]

    def test_tool_selection_selects_where_tools_does_not(self, tmp_path: Path) -> None:
        rows = [
            {"prompt": "?", "tool_selection": ["a"]},
            {"prompt": "?", "tool_selection": ["a"], "tools": ["b"]},
            {"prompt": "?", "tool_selection": ["a"], "tools": [{"type": "function"}]},
            {"prompt": "?", "tool_selection": []},
        ]
        source = read(write(tmp_path / "a.jsonl", *rows, {"prompt": "?", "tool_selection": "a"}))
        assert [source[index].tools for index in range(4)] == [("a",), ("b",), ("a",), ()]
        with pytest.raises(DataError, match="'tool_selection' is 'a', expected a list of tool names"):
            source[4]

    def test_fields_by_dotted_paths_read_the_layout_of_verl(self, tmp_path: Path) -> None:
        task = read(write(tmp_path / "a.jsonl", VERL_ROW), fields=VERL_FIELDS)[0]
        assert task.messages == (Message("user", "How many?"),)
        assert task.answer == "72"
        assert task.id == "3"
        assert task.tools == ("calc_gsm8k_reward",)
        assert task.tools_kwargs == VERL_ROW["extra_info"]["tools_kwargs"]  # type: ignore[index]
        assert task.extra == {"data_source": "openai/gsm8k", "ability": "math"}

    def test_extra_may_be_one_object(self, tmp_path: Path) -> None:
        task = read(write(tmp_path / "a.jsonl", VERL_ROW), fields={**VERL_FIELDS, "extra": "extra_info"})[0]
        assert task.extra == VERL_ROW["extra_info"]

    def test_objects_may_be_json_text(self, tmp_path: Path) -> None:
        row = {"prompt": "?", "info": json.dumps({"kwargs": {"a": {"create_kwargs": '{"x": 1}'}}})}
        task = read(write(tmp_path / "a.jsonl", row), fields={"tools_kwargs": "info.kwargs"})[0]
        assert task.tools_kwargs == {"a": {"create_kwargs": {"x": 1}}}

    def test_a_tools_column_of_schemas_is_no_selection(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"prompt": "?", "tools": [{"type": "function"}]})
        assert read(path)[0].tools is None
        with pytest.raises(DataError, match="expected a list of tool names"):
            read(path, fields={"tools": "tools"})[0]

    def test_demonstrations_hold_calls_in_the_openai_form(self, tmp_path: Path) -> None:
        row = {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "12 * "}, {"type": "text", "text": "34?"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "A product.",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"e": "1"}'}},
                        {"function": {"name": "calculator", "arguments": {"e": None}}},
                        {"name": "now"},
                    ],
                },
                {"role": "tool", "content": "408", "tool_call_id": "c1", "name": "calculator"},
                {"role": "tool", "content": "0", "name": "calculator"},
                {"role": "tool", "content": "noon"},
                {"role": "assistant", "content": "408"},
            ]
        }
        messages = read(write(tmp_path / "a.jsonl", row))[0].messages
        assert messages == (
            Message("user", "12 * 34?"),
            Message(
                "assistant",
                reasoning="A product.",
                tool_calls=(
                    ToolCall("calculator", {"e": "1"}, id="c1"),
                    ToolCall("calculator", {"e": None}),
                    ToolCall("now", {}),
                ),
            ),
            Message("tool", "408", tool_call_id="c1", name="calculator"),
            Message("tool", "0", name="calculator"),
            Message("tool", "noon"),
            Message("assistant", "408"),
        )


class TestFiles:
    def test_globs_lists_and_limits(self, tmp_path: Path) -> None:
        for name, count in (("b.jsonl", 3), ("a.jsonl", 2), ("c.jsonl", 2)):
            write(tmp_path / name, *({"prompt": f"{name}{i}"} for i in range(count)))
        assert [t.messages[0].content for t in iterate(read(tmp_path / "[ab].jsonl"))] == [
            "a.jsonl0", "a.jsonl1", "b.jsonl0", "b.jsonl1", "b.jsonl2",
        ]  # fmt: skip
        source = read([str(tmp_path / "c.jsonl"), str(tmp_path / "a.jsonl")], limit=3)
        assert [task.id for task in iterate(source)] == ["c-0", "c-1", "a-2"]
        with pytest.raises(IndexError):
            source[3]

    def test_blank_lines_and_any_line_end_are_fine(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes('\n{"prompt": "ä"}\r\n\r\n  \n{"prompt": "b"}'.encode())
        source = read(path)
        assert [task.messages[0].content for task in iterate(source)] == ["ä", "b"]

    def test_an_empty_file_has_no_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.touch()
        assert len(read(path)) == 0

    def test_a_json_file_holds_one_list(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.json", [{"prompt": "x"}, {"prompt": "y"}])
        assert [task.id for task in iterate(read(path))] == ["a-0", "a-1"]
        with pytest.raises(DataError, match=r"object, expected a list.*") as caught:
            len(read(write(tmp_path / "b.json", {"prompt": "x"})))
        assert caught.value.where == str(tmp_path / "b.json")

    def test_only_line_starts_are_kept(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", *({"prompt": "x" * 10_000} for _ in range(200)))
        source = read(path)
        assert source[150].id == "a-150"
        assert len(pickle.dumps(source)) < 10_000


class TestErrors:
    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no file matches") as caught:
            read(tmp_path / "none*.jsonl")
        assert caught.value.where == "data.train"

    def test_a_bad_line_names_file_and_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"prompt": "x"}, "", '{"prompt": ', {"prompt": "y"})
        source = read(path)
        assert source[2].messages[0].content == "y"
        with pytest.raises(DataError, match="not JSON: Expecting value") as caught:
            source[1]
        assert caught.value.where == f"{path}:3"

    @pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
    def test_a_file_in_another_encoding_says_how_to_convert_it(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        path.write_bytes('{"prompt": "café"}\n'.encode("latin-1"))
        with pytest.raises(DataError, match="not UTF-8: byte 0xe9 at column 16") as caught:
            read(path)[0]
        assert (caught.value.where or "").startswith(str(path))
        assert "iconv -f LATIN1 -t UTF-8" in (caught.value.hint or "")

    def test_a_table_of_text_says_what_to_convert_it_to(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("prompt,answer\n")
        with pytest.raises(DataError, match=r"\.csv files aren't read") as caught:
            read(tmp_path / "a.csv")
        assert "JSON Lines" in (caught.value.hint or "")

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ([1], "a row is a JSON list, expected an object"),
            ({"question": "x"}, "neither 'messages' nor 'prompt' is there; the row has: question"),
            ({"prompt": 3}, "'prompt' is 3, expected a text or a list of messages"),
            ({"messages": []}, "'messages' is []"),
            ({"messages": ["x"]}, "'messages[0]' is 'x', expected an object"),
            ({"messages": [{"role": "bot", "content": ""}]}, "'messages[0].role' is 'bot', expected one of system"),
            ({"messages": [{"role": "user", "content": 5}]}, "'messages[0].content' is 5, expected a text"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                "'messages[0].content[0]' is {'type': 'image_url'}, expected a part of type 'text'",
            ),
            (
                {"messages": [{"role": "user", "content": "", "tool_calls": [{"name": "a"}]}]},
                "only an assistant message has calls",
            ),
            ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "'messages[0].tool_calls' is 'x'"),
            ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "'messages[0].tool_calls[0]' is {}"),
            (
                {"messages": [{"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}]},
                "'messages[0].tool_calls[0].function.arguments' is '{', expected an object or its JSON text",
            ),
            (
                {"messages": [{"role": "assistant", "tool_calls": [{"name": "a", "arguments": [1]}]}]},
                "is [1], expected an object",
            ),
            ({"prompt": "x", "tools_kwargs": [1]}, "'tools_kwargs' is [1], expected an object"),
            ({"prompt": "x", "tools_kwargs": {"a": {"create": {}}}}, "'tools_kwargs.a.create' is no stage's arguments"),
        ],
    )
    def test_a_bad_row_says_what_was_expected(self, tmp_path: Path, row: Any, message: str) -> None:
        path = write(tmp_path / "a.jsonl", {"prompt": "fine"}, row)
        with pytest.raises(DataError) as caught:
            read(path)[1]
        assert message in caught.value.message
        assert caught.value.where == f"{path}:2"

    def test_a_field_that_is_named_has_to_be_there(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"prompt": "x", "reward_model": {"style": "rule"}})
        with pytest.raises(DataError, match=r"no value at 'reward_model.ground_truth' \(fields.answer\)") as caught:
            read(path, fields={"answer": "reward_model.ground_truth"})[0]
        assert caught.value.hint == "The row has: prompt, reward_model."

    def test_options_refuse_what_they_do_not_know(self) -> None:
        with pytest.raises(ValidationError):
            FileDatasetOptions(path="a", colour="red")  # type: ignore[call-arg]
        with pytest.raises(ValidationError, match="name one of"):
            FileDatasetOptions.model_validate({"path": "a", "fields": {"messages": "m", "prompt": "p"}})
        with pytest.raises(ValidationError):
            FileDatasetOptions(path="a", limit=0)


class TestParquet:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        other = json.loads(json.dumps(VERL_ROW))
        other["extra_info"]["index"] = 4
        other["extra_info"]["tools_kwargs"] = {"calculator": {"create_kwargs": {"digits": 3}}}
        table = pyarrow.Table.from_pylist([VERL_ROW, other] * 5)
        parquet.write_table(table, tmp_path / "train.parquet", row_group_size=3)
        return tmp_path / "train.parquet"

    def test_rows_across_row_groups(self, path: Path) -> None:
        source = read_parquet(path, fields=VERL_FIELDS)
        assert len(source) == 10
        assert [task.id for task in iterate(source)] == ["3", "4"] * 5
        assert source[9].answer == "72"
        assert pickle.loads(pickle.dumps(source))[8] == source[8]

    def test_what_a_row_lacks_is_absent_and_not_null(self, path: Path) -> None:
        source = read_parquet(path, fields=VERL_FIELDS)
        assert source[0].tools_kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}}
        assert source[1].tools_kwargs == {"calculator": {"create_kwargs": {"digits": 3}}}

    def test_row_groups_are_dropped_beyond_the_budget(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "TABLE_BYTES", 1)
        file = rows.ParquetRows(path)
        assert [file[index]["extra_info"]["index"] for index in (0, 9, 1)] == [3, 4, 4]
        assert len(file._tables) == 1

    def test_bad_rows_and_bad_files(self, path: Path) -> None:
        with pytest.raises(DataError, match="no value at 'answer'") as caught:
            read_parquet(path, fields={"answer": "answer"})[2]
        assert caught.value.where == f"{path}[2]"
        path.write_text("not parquet")
        with pytest.raises(DataError, match="can't be read as parquet"):
            len(read_parquet(path))

    def test_json_columns_are_what_load_dataset_gives(self, tmp_path: Path) -> None:
        """`datasets` 5 stores empty objects and mixed types as `arrow.json`, at any depth."""
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        given = {
            "prompt": "q",
            "answer": {"target": ["4", None], "note": None},
            "tools_kwargs": {"t": {"create_kwargs": {"metadata": {}, "text": "{}"}}},
            "mixed": [{"u": {}}, 1, "a", "{}", None],
            "absent": None,
        }
        text = lambda value: None if value is None else json.dumps(value)  # noqa: E731
        json_ = lambda *values: arrow.ExtensionArray.from_storage(  # noqa: E731
            arrow.json_(), arrow.array([text(value) for value in values], arrow.string())
        )
        kwargs = arrow.StructArray.from_arrays([json_({}), arrow.array(["{}"])], names=["metadata", "text"])
        for name in ("create_kwargs", "t"):
            kwargs = arrow.StructArray.from_arrays([kwargs], names=[name])
        columns = {
            "prompt": arrow.array(["q"]),
            "answer": json_(given["answer"]),
            "tools_kwargs": kwargs,
            "mixed": arrow.ListArray.from_arrays(arrow.array([0, 5], arrow.int32()), json_(*given["mixed"])),
            "absent": json_(None),
        }
        file = tmp_path / "train.parquet"
        parquet.write_table(arrow.table(columns), file)
        del given["absent"]
        assert rows.ParquetRows(file)[0] == given
        task = read_parquet(file)[0]
        assert (task.answer, task.tools_kwargs) == (given["answer"], given["tools_kwargs"])
        try:
            import datasets as library
        except ImportError:
            return
        loaded = library.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "cache"))[0]
        assert {name: value for name, value in loaded.items() if value is not None} == given

    def test_broken_json_in_a_column_names_its_row(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        column = arrow.ExtensionArray.from_storage(arrow.json_(), arrow.array(["{}", "{"]))
        parquet.write_table(arrow.table({"prompt": ["a", "b"], "answer": column}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="isn't JSON") as caught:
            read_parquet(tmp_path / "a.parquet")[1]
        assert caught.value.where == f"{tmp_path / 'a.parquet'}[1]"

    def test_without_pyarrow_it_says_what_to_install(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        with pytest.raises(DataError) as caught:
            len(read_parquet(path))
        assert caught.value.hint == "pip install 'toolrl[parquet]'"


class TestImages:
    def test_paths_begin_at_the_data_files_folder(self, tmp_path: Path) -> None:
        row = {"prompt": "What is it?", "images": ["pictures/a.png", "/elsewhere/b.png"]}
        (message,) = read(write(tmp_path / "train.jsonl", row))[0].messages
        assert [item.data for item in message.media] == [str(tmp_path / "pictures/a.png"), "/elsewhere/b.png"]
        assert {item.kind for item in message.media} == {"image"}

    def test_they_stand_where_the_messages_say(self, tmp_path: Path) -> None:
        messages = [
            {"role": "system", "content": "An <image> is a picture."},
            {"role": "user", "content": "<image> and <image>"},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]},
        ]
        task = read(write(tmp_path / "train.jsonl", {"messages": messages, "images": ["a", "b", "c"]}))[0]
        names = [[Path(item.data).name for item in message.media] for message in task.messages]
        assert names == [[], ["a", "b"], [], ["c"]]
        assert task.messages[3].content == "<image>?"

    def test_they_follow_an_answer_that_is_bound_to_its_call(self, tmp_path: Path) -> None:
        calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ("first", "second")]
        answers = [{"role": "tool", "content": f"<image> {id_}", "tool_call_id": id_} for id_ in ("second", "first")]
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}, *answers]
        task = read(write(tmp_path / "a.jsonl", {"messages": messages, "images": ["second.png", "first.png"]}))[0]
        shown = [(message.content, Path(message.media[0].data).name) for message in task.messages[2:]]
        assert shown == [("<image> first", "first.png"), ("<image> second", "second.png")]

    def test_without_marks_they_are_the_first_user_messages(self, tmp_path: Path) -> None:
        messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
        task = read(write(tmp_path / "train.jsonl", {"messages": messages, "images": ["a"]}))[0]
        assert [len(message.media) for message in task.messages] == [0, 1]

    def test_bytes_come_from_parquet(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        rows = [{"prompt": "x", "images": [{"bytes": b"png", "path": None}, {"bytes": None, "path": "b.png"}]}]
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet")
        (message,) = read_parquet(tmp_path / "a.parquet")[0].messages
        assert [item.data for item in message.media] == [b"png", str(tmp_path / "b.png")]

    @pytest.mark.parametrize("value", [[], None, "a column of something else", {"a": 1}])
    def test_no_images(self, tmp_path: Path, value: Any) -> None:
        assert read(write(tmp_path / "train.jsonl", {"prompt": "x", "images": value}))[0].messages[0].media == ()

    @pytest.mark.parametrize(
        ("row", "match"),
        [
            ({"prompt": "<image>", "images": ["a", "b"]}, "holds 2 images, and the messages hold `<image>` 1 times"),
            ({"prompt": "x", "images": [7]}, r"'images\[0\]' is 7, expected a path"),
            ({"prompt": "x", "images": [{}]}, r"'images\[0\]'"),
            ({"messages": [{"role": "system", "content": "x"}], "images": ["a"]}, "no message is the user's"),
        ],
    )
    def test_what_cannot_be_placed_is_told(self, tmp_path: Path, row: Any, match: str) -> None:
        with pytest.raises(DataError, match=match):
            read(write(tmp_path / "train.jsonl", row))[0]

    def test_a_named_column_may_hold_a_single_image(self, tmp_path: Path) -> None:
        path = write(tmp_path / "train.jsonl", {"prompt": "x", "pics": "a"}, {"prompt": "x", "pics": 7})
        data = read(path, fields={"images": "pics"})
        assert [media.data for media in data[0].messages[0].media] == [str(tmp_path / "a")]
        with pytest.raises(DataError, match="'pics' is 7, expected a path"):
            data[1]

    def test_pictures_of_pil_are_taken(self) -> None:
        picture = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
        assert datasets.read_image(picture, "images[0]", Path()).data is picture


def test_an_empty_cell_of_a_table_is_absent_for_every_reader(tmp_path: Path) -> None:
    """pandas writes NaN where a cell is empty."""
    path = write(tmp_path / "a.jsonl", '{"prompt": "q", "answer": NaN, "level": NaN, "inside": [NaN]}')
    row = rows.JoinedRows([rows.open_rows(path)])[0]
    assert list(row) == ["prompt", "inside"]
