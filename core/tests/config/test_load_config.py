"""Reading a config: both passes, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from toolrl.config.load import check_config, load_config
from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry

MINIMAL = {"model": {"path": "m"}, "environments": {"default": {}}}


def problems(tree: Any, registry: Registry, *overrides: str, **environ: str) -> list[str]:
    """The mistakes of a config, without what they have as a common start."""
    with pytest.raises(ConfigError) as caught:
        check_config(tree, overrides, registry=registry, environ=environ)
    return caught.value.problems


def test_a_config_without_mistakes_is_completed(tree: dict[str, Any], registry: Registry) -> None:
    loaded = check_config(tree, registry=registry)
    environment = loaded.config.environments["default"]
    assert environment.tools[0].use == "bare"
    assert environment.tools[1].rename == {"calculator": "calc"}
    assert loaded.config.trainer.steps == 3
    assert loaded.config.algorithm.group_size == 8
    assert loaded.resolved["environments"]["default"]["parser"] == {"use": "hermes", "options": {}}
    assert loaded.resolved["environments"]["default"]["tools"][1]["as"] == {"calculator": "calc"}


def test_what_was_resolved_can_be_read_again(tree: dict[str, Any], registry: Registry, tmp_path: Path) -> None:
    first = check_config(tree, registry=registry)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(first.resolved))
    second = load_config(file, registry=registry)
    assert second.resolved == first.resolved
    assert second.config == first.config
    assert second.source == str(file)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("trainer.stps=5", "trainer.stps: unknown key; did you mean 'steps'? (by --set)"),
        (
            "trainer.test_freq=5",
            "trainer.test_freq: unknown key; did you mean evaluation.every (verl: trainer.test_freq; TRL: eval_steps)? "
            "(by --set)",
        ),
        (
            "algorithm.num_generations=4",
            "algorithm.num_generations: unknown key; did you mean group_size (verl: rollout.n; TRL: num_generations)? "
            "(by --set)",
        ),
        ("model={}", "model.path: missing, and it has no default (by --set)"),
        ("model=5", "model: Input should be a mapping (got 5) (by --set)"),
        ("model.dtype=int8", "model.dtype: Input should be 'auto', 'float32' or 'bfloat16' (got 'int8') (by --set)"),
        ("trainer.betas=[0.9]", "trainer.betas[1]: missing, and it has no default (by --set)"),
        (
            "trainer.save_every=true",
            "trainer.save_every: expected a number of steps, or a time such as 15min, 2h or 90s (got true) (by --set)",
        ),
        ("model.path=''", "model.path: String should have at least 1 character (got '') (by --set)"),
        ("environments={}", "environments: Dictionary should have at least 1 item"),
        (
            "environments.default.tools[0]=5",
            "environments.default.tools[0]: Input should be a mapping (got 5) (by --set)",
        ),
        (
            "environments.default.tools[1].options.servers=[{url: a}, {url: b, retry: 1}]",
            "environments.default.tools[1].options.servers[1].retry: unknown key; did you mean 'retries'? [calculator] "
            "(by --set)",
        ),
        (
            "environments.default.tools[1].options.named={a.b: {}}",
            'environments.default.tools[1].options.named["a.b"].url: missing, and it has no default [calculator] '
            "(by --set)",
        ),
        (
            "environments.default.tools[1].options.path=5",
            "environments.default.tools[1].options.path: Input should be a valid string or a valid list (got 5) "
            "[calculator] (by --set)",
        ),
        (
            "environments.default.tools[1].options.nothing=11",
            "environments.default.tools[1].options.nothing: unknown key; there are: precision, mode, path, server, "
            "servers, named, key, rate [calculator] (by --set)",
        ),
        (
            "environments.default.tools[0].options.x=1",
            "environments.default.tools[0].options.x: unknown key; it takes no options [bare] (by --set)",
        ),
        (
            "environments.default.tools[1].policy.timout=1",
            "environments.default.tools[1].policy.timout: unknown key; did you mean 'timeout'? (by --set)",
        ),
        (
            "engine=zzz",
            "engine: there is no engine named 'zzz'; installed: transformers; `toolrl list-plugins` shows",
        ),
        ("sft.data.use=rws", "sft.data: there is no data set named 'rws'; installed: lost, rows; did you mean 'rows'?"),
        ("data.eval=lost", "data.eval: component 'lost': its options"),
        (
            "environments.default.rewards=[badmodel]",
            "environments.default.rewards[0]: component 'badmodel': its options",
        ),
    ],
)
def test_a_mistake_and_its_line(tree: dict[str, Any], registry: Registry, override: str, problem: str) -> None:
    found = problems(tree, registry, override)
    assert found[0].startswith(problem), found
    if problem.endswith("(by --set)"):
        assert found == [problem]


def test_options_are_checked_also_where_the_frame_is_wrong(registry: Registry) -> None:
    found = problems(
        {
            "modell": {"path": "x"},
            "data": {"train": {"use": "rows", "options": {"rate": 0}}, "evaluate": "rows"},
            "environments": {"a": 5, "b": {"max_turns": 0, "parser": {"use": "hermes", "options": {"mode": "slow"}}}},
            "observers": "console",
        },
        registry,
    )
    assert found == [
        "model: missing, and it has no default",
        "data.evaluate: unknown key; did you mean 'eval'?",
        "environments.a: Input should be a mapping (got 5)",
        "environments.b.max_turns: Input should be ≥ 1 (got 0)",
        "observers: Input should be a valid list (got 'console')",
        "modell: unknown key; did you mean 'model'?",
        "environments.b.parser.options.mode: Input should be 'fast' or 'exact' (got 'slow') [hermes]",
        "data.train.options.rate: Input should be > 0 (got 0) [rows]",
    ]


def test_end_flags_are_checked_one_by_one(tree: dict[str, Any], registry: Registry) -> None:
    tree["environments"]["default"]["end_flags"] = ["boxed", "answer", "FINAL: (.*)"]
    check_config(tree, registry=registry)
    tree["environments"]["default"]["end_flags"] = ["boxed", "(unclosed", 5]
    lines = problems(tree, registry)
    assert [line.partition(":")[0] for line in lines] == [
        "environments.default.end_flags[1]",
        "environments.default.end_flags[2]",
    ]
    assert "(unclosed" in lines[0]


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("model: {path: a\ntrainer: 5\n", ":2:8", "not valid YAML"),
        ("a:\n\tb: 1\n", ":2:1", "cannot start any token"),
        ("- a\n- b\n", "", "a config is a mapping of sections, this is a list"),
        ("a: &x [*x]\n", "", "alias"),
        ("a: *nowhere\n", ":1:4", "undefined alias"),
        ("a: !!python/object:os.system {}\n", ":1:4", "could not determine a constructor"),
        ("b: 1\nseed: 2024-99-99\n", "", "month must be in 1..12"),
        ("a: \x00", "", "special characters are not allowed"),
        ("a: " + "[" * 5000 + "]" * 5000, "", "nested too deep"),
        ("\n".join(" " * level + "a:" for level in range(2000)), "", "nested too deep"),
    ],
)
def test_yaml_that_cannot_be_read(tmp_path: Path, registry: Registry, text: str, where: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, registry=registry)
    assert message in str(caught.value)
    assert f"{file}{where}" in str(caught.value) or not where


def test_a_file_that_is_not_there(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_config(tmp_path / "none.yaml", registry=registry)
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path, registry=registry)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="isn't UTF-8(?s:.)*iconv"):
        load_config(tmp_path / "binary.yaml", registry=registry)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("# nothing\n", "model: missing, and it has no default\nenvironments: missing, and it has no default", None),
        ("seed: 1\nseed: 2\n", "line 2: the key 'seed' stands here and on line 1", None),
    ],
)
def test_a_file_that_is_no_config(
    tmp_path: Path, registry: Registry, text: str, problem: str, hint: str | None
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml", registry=registry)
    assert problem in str(caught.value)
    assert hint is None or caught.value.hint == hint


def test_numbers_without_a_dot_are_numbers(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: 1e-6}\nenvironments: {default: {}}\ntrainer: {learning_rate: 3e-6, eps: 1E-9}\n")
    with pytest.raises(ConfigError, match=r"model\.path: Input should be a valid string \(got 1e-06\)"):
        load_config(file, registry=registry)
    loaded = load_config(file, ["model.path=e5"], registry=registry)
    assert (loaded.config.trainer.learning_rate, loaded.config.trainer.eps) == (3e-6, 1e-9)


def test_yaml_aliases_are_values_of_their_own(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "model: {path: a}\nenvironments: {default: {}}\n"
        "data: {train: &rows {use: rows, options: {precision: 7}}, eval: *rows}\n"
    )
    loaded = load_config(file, ["data.train.options.precision=9"], registry=registry)
    assert loaded.resolved["data"]["train"]["options"] == {"precision": 9}
    assert loaded.resolved["data"]["eval"]["options"] == {"precision": 7}


@pytest.mark.parametrize("name", ["..", ".", "../x", "/etc", "a/b", "a\\b", "a\nb", "a\0b", "x" * 201, "é" * 101])
def test_a_runs_name_is_one_folder(registry: Registry, name: str) -> None:
    with pytest.raises(ConfigError, match="run.name: .*the name of one folder"):
        check_config({**MINIMAL, "run": {"name": name}}, registry=registry)


def test_a_run_is_named_like_its_file(tree: dict[str, Any], registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "gsm8k.grpo.yaml"
    tree.pop("run", None)
    file.write_text(yaml.safe_dump(tree))
    loaded = load_config(file, registry=registry)
    assert loaded.config.run.name == loaded.resolved["run"]["name"] == "gsm8k.grpo"
    assert load_config(file, ["run.name=mine"], registry=registry).config.run.name == "mine"
    assert load_config(file, ["run.dir=elsewhere"], registry=registry).config.run.name == "gsm8k.grpo"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (r'path: "C:\models\qwen"', "found unknown escape character 'm'"),
        (r'path: "C:\u"', "expected escape sequence"),
    ],
)
def test_a_windows_path_in_double_quotes_says_how_to_write_it(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(f"model:\n  {line}\n", "run.yaml")
    assert message in caught.value.message
    assert (caught.value.where or "").startswith("run.yaml:2:")
    assert r"'C:\models'" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("over_sample_rate", "rollout.max_staleness: 1"),
        ("oversample", "rollout.max_staleness: 1"),
        ("tool_config", "environments.NAME.tools"),
        ("actor_rollout_ref", "`toolrl verl convert FILE`"),
        ("gconfig", "`toolrl areal convert FILE`"),
    ],
)
def test_keys_of_other_systems_name_what_there_is_instead(
    tree: dict[str, Any], registry: Registry, key: str, instead: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config({**tree, "rollout": {key: 1}}, registry=registry)
    (problem,) = caught.value.problems
    assert problem.startswith(f"rollout.{key}: unknown key; ")
    assert instead in problem


def test_an_environment_is_not_called_like_a_standard_error(tree: dict[str, Any], registry: Registry) -> None:
    tree["environments"]["math/stderr"] = tree["environments"]["default"]
    with pytest.raises(ConfigError, match=r"environments.math/stderr.*rename it"):
        check_config(tree, registry=registry)


A = {"use": "jsonl", "options": {"path": "a.jsonl"}, "name": "a"}
B = {**A, "name": "b"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"train": []}, "data.train: the list is empty; expected data sets"),
        ({"eval": [A, {**A, "options": {"path": "b.jsonl"}}]}, "data.eval: duplicate name 'a'"),
        ({"train": ["jsonl", "jsonl"]}, "data.train: duplicate name 'jsonl'; give each data set a `name` of its own"),
        ({"train": [{**A, "share": 0}, B]}, "data.train[0].share: Input should be > 0 (got 0)"),
        ({"train": [{**A, "share": 1}, B]}, "data.train: item 1 has no `share`"),
        ({"train": [{**A, "environment": "defautl"}]}, "data.train[0].environment: unknown environment 'defautl'. Did"),
        ({"train": [A, {**B, "shar": 1}]}, "data.train[1].shar: unknown key; did you mean 'share'?"),
        ({"train": [A, {"use": "jsnl", "name": "b"}]}, "data.train[1]: "),
        ({"train": [{"prompt": "2 + 2?"}]}, "data.train[0].use: missing"),
        ({"eval": [{**A, "share": 1}]}, "data.eval[0].share: unknown key"),
    ],
)
def test_mistakes_in_a_list_of_data_sets(registry: Registry, data: dict[str, Any], problem: str) -> None:
    assert any(line.startswith(problem) for line in problems({**MINIMAL, "data": data}, registry))
