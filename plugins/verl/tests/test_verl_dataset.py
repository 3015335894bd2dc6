"""verl's rows become tasks."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import DataError
from toolrl_plugin_verl.dataset import VerlDataset
from toolrl_plugin_verl.options import VerlDatasetOptions, VerlRewardOptions, VerlToolOptions
from toolrl_testing import make_build_context

ROW: dict[str, Any] = {
    "data_source": "hiyouga/geometry3k",
    "agent_name": "tool_agent",
    "prompt": [
        {"role": "system", "content": "You are a math expert."},
        {"role": "user", "content": "Find x."},
    ],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "48"},
    "extra_info": {
        "split": "train",
        "index": 3,
        "question": "Find x.",
        "need_tools_kwargs": True,
        "tools_kwargs": {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "48"}}},
        "tool_selection": ["calc_geo3k_reward"],
    },
}


def dataset(path: Path, *rows: dict[str, Any], **options: Any) -> VerlDataset:
    file = path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return VerlDataset(VerlDatasetOptions(path=str(file), **options), make_build_context("verl"))


def test_a_row_of_the_guide(tmp_path: Path) -> None:
    source = dataset(tmp_path, ROW, ROW)
    task = source[1]
    assert len(source) == 2
    assert task.id == "train-1"
    assert [(message.role, message.content) for message in task.messages] == [
        ("system", "You are a math expert."),
        ("user", "Find x."),
    ]
    assert task.answer == "48"
    assert task.tools == ("calc_geo3k_reward",)
    assert task.tools_kwargs == {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "48"}}}
    assert task.environment is None
    assert task.extra["data_source"] == "hiyouga/geometry3k"
    assert task.extra["ability"] == "math"
    assert task.extra["extra_info"] == ROW["extra_info"]
    assert (task.extra["index"], task.extra["split"], task.extra["agent_name"]) == (3, "train", "tool_agent")


def test_a_row_with_little(tmp_path: Path) -> None:
    """An empty selection means all tools: a column that other rows fill is there in each row."""
    task = dataset(tmp_path, {"prompt": "Say hi.", "extra_info": {"tool_selection": []}})[0]
    assert [(message.role, message.content) for message in task.messages] == [("user", "Say hi.")]
    assert (task.answer, task.tools, task.tools_kwargs) == (None, None, {})


def test_what_is_not_there_is_told_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    for path in (str(tmp_path / "*.jsonl"), str(tmp_path / "a.jsonl")):
        VerlDatasetOptions(path=path).check_files()
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: verl.tools.gsm8k_tool.Gsm8kTool, config: {}}]")
    VerlToolOptions(tool_config_path=str(tmp_path / "tools.yaml")).check_files()
    missing = str(tmp_path / "none")
    for options in (
        VerlDatasetOptions(path=[str(tmp_path / "a.jsonl"), missing]),
        VerlToolOptions(tool_config_path=missing),
        VerlToolOptions(function_tool_path=missing),
        VerlToolOptions(tool_config_path=str(tmp_path / "tools.yaml"), python_path=[missing]),
        VerlRewardOptions(path=missing),
    ):
        with pytest.raises(DataError, match="none"):
            options.check_files()
    VerlRewardOptions().check_files()


@pytest.mark.parametrize(
    ("environments", "expected"),
    [
        ({"tool_agent": "geometry"}, "geometry"),
        ({"hiyouga/geometry3k": "by_source"}, "by_source"),
        ({"tool_agent": "geometry", "hiyouga/geometry3k": "by_source"}, "geometry"),
        ({"another": "x"}, "rest"),
    ],
)
def test_rows_are_routed(environments: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert dataset(tmp_path, ROW, environments=environments, environment="rest")[0].environment == expected


def test_a_route_that_no_row_takes_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    routes = {"tool_agent": "geometry", "hiyouga/geometry3k": "by_source", "geometry3k": "x"}
    dataset(tmp_path, ROW, environments=routes)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "options.environments" in line
    assert "'geometry3k'" in line
    assert "tool_agent" not in line


def test_a_route_to_no_environment_is_told_before_a_run() -> None:
    config: Any = SimpleNamespace(environments={"default": None})
    options = VerlDatasetOptions(path="x", environments={"a": "default", "b": "defualt"})
    (line,) = options.misfits(config)
    assert "'defualt'" in line


def test_other_column_names(tmp_path: Path) -> None:
    row = {"chat": [{"role": "user", "content": "Q"}], "source": "aime24", "reward_model": {"ground_truth": 5}}
    task = dataset(tmp_path, row, prompt_key="chat", reward_fn_key="source")[0]
    assert task.messages[0].content == "Q"
    assert task.extra["data_source"] == "aime24"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, "no column 'prompt'; the row has: data_source"),
        ({"prompt": {"role": "user"}}, "expected a list of messages"),
        ({"prompt": [{"role": "bot", "content": "x"}]}, r"'prompt\[0\].role' is 'bot'"),
        ({"extra_info": {"tool_selection": "search"}}, "expected a list of tool names"),
        ({"extra_info": {"tools_kwargs": {"t": {"kwargs": {}}}}}, "'extra_info.tools_kwargs.t.kwargs' is no stage's"),
        ({"images": ["a.png"], "prompt": "<image> <image>"}, r"more <image> than the row has images \(1\)"),
        ({"images": ["a.png", "b.png"], "prompt": "<image>"}, "more images than its messages have <image>"),
        ({"images": ["a.png"], "prompt": [{"role": "system", "content": "x"}]}, "no message is the user's"),
        ({"images": [7], "prompt": "<image>"}, r"images\[0\] is int"),
        ({"images": ["http://x/y.png"], "prompt": "<image>"}, "is the address"),
        ({"images": [{"bytes": None}], "prompt": "<image>"}, "has none of 'bytes'"),
    ],
)
def test_a_bad_row_says_where_and_what(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = dataset(tmp_path, ROW, {**ROW, **changes})
    with pytest.raises(DataError, match=message) as caught:
        source[1]
    assert str(caught.value.where).endswith("train.jsonl:2")


def picture(color: str = "red") -> bytes:
    """Stands for a file's bytes: nobody looks at them here."""
    return f"PNG of {color}".encode()


def test_images_stand_where_the_text_says(tmp_path: Path) -> None:
    encoded = [f"data:image/png;base64,{base64.b64encode(picture(color)).decode()}" for color in ("red", "blue")]
    prompt = [{"role": "system", "content": "Look."}, {"role": "user", "content": "<image>A<image>B<video>"}]
    row = {**ROW, "prompt": prompt, "images": encoded, "videos": [{"video": "clip.mp4"}]}
    source = dataset(tmp_path, row)
    system, user = source[0].messages
    assert system.media == ()
    assert user.content == "<image>A<image>B<video>"
    assert [media.kind for media in user.media] == ["image", "image", "video"]
    assert [media.data for media in user.media[:2]] == [picture("red"), picture("blue")]
    assert user.media[2].data == "clip.mp4"
    assert "images" not in source[0].extra
    assert pickle.loads(pickle.dumps(source))[0] == source[0]


def test_images_without_a_placeholder_belong_to_the_first_user_message(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    messages = dataset(tmp_path, {**ROW, "prompt": prompt, "images": ["a.png"]})[0].messages
    assert [[media.data for media in message.media] for message in messages] == [["a.png"], [], []]
    (text,) = dataset(tmp_path, {**ROW, "prompt": "What is <image>?"})[0].messages
    assert (text.content, text.media) == ("What is <image>?", ()), "without a column of images a placeholder is text"


def test_content_in_parts(tmp_path: Path) -> None:
    parts = [
        {"type": "image"},
        {"type": "text", "text": "and "},
        {"type": "image", "image": "own.png"},
        {"type": "text", "text": "?"},
    ]
    row = {**ROW, "prompt": [{"role": "user", "content": parts}], "images": [{"path": "column.png", "bytes": None}]}
    (message,) = dataset(tmp_path, row)[0].messages
    assert message.content == "<image>and <image>?"
    assert [media.data for media in message.media] == ["column.png", "own.png"]


def test_parquet_as_verl_writes_it(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install 'toolrl[parquet]'")
    from pyarrow import parquet

    other = {
        **ROW,
        "extra_info": {"split": "train", "index": 4, "tools_kwargs": {"search": {"create_kwargs": {"q": 1}}}},
    }
    rows = [{**row, "images": [{"bytes": picture(), "path": None}]} for row in (ROW, other)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    options = VerlDatasetOptions(path=str(tmp_path / "*.parquet"), limit=2)
    source = VerlDataset(options, make_build_context("verl"))
    first, second = source[0], source[1]
    assert first.tools_kwargs == {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "48"}}}
    assert second.tools_kwargs == {"search": {"create_kwargs": {"q": 1}}}
    assert second.tools is None
    assert first.messages[1].media[0].data == picture()
    assert type(first.tools_kwargs["calc_geo3k_reward"]["create_kwargs"]) is dict


def test_a_relative_path_begins_at_the_data_files_folder_where_it_leads_somewhere(tmp_path: Path) -> None:
    (tmp_path / "here.png").write_bytes(picture())
    source = dataset(tmp_path, {**ROW, "prompt": "<image><image>", "images": ["here.png", "elsewhere.png"]})
    assert [media.data for media in source[0].messages[0].media] == [str(tmp_path / "here.png"), "elsewhere.png"]
