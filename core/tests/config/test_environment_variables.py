"""`${NAME}` in a config: its value reaches the run, and no message, log or file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from toolrl.config.env import interpolate
from toolrl.config.load import check_config
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry

SECRET = "s3cret-value-xyz"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "one"),
        ("http://${A}:${B}/x", "http://one:two/x"),
        ("${NONE:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${A:-d}", "one"),
        ("${NONE:-http://h:1/x}", "http://h:1/x"),
        ("$${A}", "${A}"),
        ("$A costs $5", "$A costs $5"),
        ("{A}", "{A}"),
    ],
)
def test_references(text: str, value: str) -> None:
    environ = {"A": "one", "B": "two", "EMPTY": ""}
    assert interpolate({"k": [text]}, environ).tree == {"k": [value]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${NONE}", "the environment variable NONE isn't set; set it, or write ${NONE:-default}"),
        ("${}", "'${}' is no variable"),
        ("${1x}", "'${1x}' is no variable"),
        ("${A", "'${A' is no variable"),
        ("a ${A B} b", "'${A B}' is no variable"),
    ],
)
def test_what_is_no_reference_is_a_problem_with_its_place(text: str, message: str) -> None:
    found = interpolate({"a": [{"b": text}]}, {"A": "one"})
    assert list(found.missing) == [("a", 0, "b")]
    assert found.missing["a", 0, "b"].startswith(message)
    assert found.tree == {"a": [{"b": text}]}


def test_values_reach_the_run_and_not_what_is_written(tree: dict[str, Any], registry: Registry) -> None:
    tree["environments"]["default"]["tools"][1]["options"] = {"key": "${KEY}", "precision": "${DIGITS}"}
    tree["environments"]["default"]["tools"][0] = "${TOOL}"
    tree["seed"] = "${SEED:-7}"
    tree["run"] = {"name": "$${literal}"}
    environ = {"KEY": SECRET, "DIGITS": "4", "TOOL": "bare"}
    loaded = check_config(tree, registry=registry, environ=environ)
    tools = loaded.config.environments["default"].tools
    assert tools[1].options == {"key": SECRET, "precision": "4"}
    assert tools[0].use == "bare"
    assert loaded.config.seed == 7
    assert loaded.config.run.name == "${literal}"
    resolved = loaded.resolved
    assert resolved["environments"]["default"]["tools"][1]["options"] == {"key": "${KEY}", "precision": "${DIGITS:-4}"}
    assert resolved["environments"]["default"]["tools"][0]["use"] == "${TOOL}"
    assert resolved["seed"] == "${SEED:-7}"
    assert SECRET not in repr(loaded)
    again = check_config(resolved, registry=registry, environ=environ)
    assert (again.config, again.resolved) == (loaded.config, resolved)


PLAIN = {
    "MODEL": "{tmp}/model",
    "GSM8K": "{tmp}",
    "STEPS": "50",
    "RATE": "1e-6",
    "DEVICE": "cuda:0",
    "SERVER": "http://localhost:8000/v1",
}
SECRETS = {
    "ANYTHING": SECRET,
    "API_KEY": "123456",
    "HF_TOKEN": "hf_abcdefgh",
    "DB_PASSWORD": "4711",
    "GOOGLE_APPLICATION_CREDENTIALS": "{tmp}/a.json",
    "AWS": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE",
    "WEBHOOK": "https://hooks.example.com/services/T000/B000/XXXX",
    "URL": "https://user:pass@example.com",
    "BRACE": "{tmp}/a}b",
    "LONG": "/" * 5000,
}


def test_values_that_are_no_secrets_are_kept_for_those_who_go_on(
    tree: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "a}b").mkdir()
    (tmp_path / "a.json").touch()
    environ = {name: value.replace("{tmp}", str(tmp_path)) for name, value in {**PLAIN, **SECRETS}.items()}
    options = {"path": [f"${{{name}}}" for name in environ]}
    tree["environments"]["default"]["tools"][1]["options"] = options
    tree["model"]["path"] = "${HUB}"
    environ["HUB"] = "owner/name"
    loaded = check_config(tree, registry=registry, environ=environ)
    kept = loaded.resolved["environments"]["default"]["tools"][1]["options"]["path"]
    assert kept == [f"${{{name}:-{environ[name]}}}" for name in PLAIN] + [f"${{{name}}}" for name in SECRETS]
    assert loaded.resolved["model"]["path"] == "${HUB:-owner/name}"
    assert loaded.hide(f"{tmp_path}/x") == f"{tmp_path}/x"
    assert loaded.hide(SECRET) == "${ANYTHING}"
    again = check_config(loaded.resolved, registry=registry, environ={name: environ[name] for name in SECRETS})
    assert (again.config, again.resolved) == (loaded.config, loaded.resolved)


def test_the_name_of_an_environment_is_no_secret() -> None:
    """Resuming must not fall back to the default: another environment than the run's."""
    tree = {"environments": {"python": {}}, "use": "${ARM:-none}", "run": "x-${ARM}", "user": "toolrl", "dsn": "${DB}"}
    found = interpolate(tree, {"ARM": "python", "DB": "toolrl"})
    assert found.texts == {("use",): "${ARM:-python}", ("run",): "x-${ARM:-python}", ("dsn",): "${DB}"}
    assert found.mask("environments.python of toolrl") == "environments.python of ${DB}"
    assert interpolate({**tree, "key": "${ARM}"}, {"ARM": "python", "DB": "toolrl"}).texts["use",] == "${ARM:-none}"


@pytest.mark.parametrize("place", [("key",), ("named", "headers", "url"), ("named", "env", "url")])
def test_a_number_at_a_credentials_place_is_a_secret_everywhere(place: tuple[str, ...]) -> None:
    tree: Any = "${A}"
    for part in reversed(place):
        tree = {part: tree}
    found = interpolate({"steps": "${A}", "other": "${B}", "options": tree}, {"A": "123456", "B": "123456"})
    assert found.texts["steps",] == "${A}"
    assert found.texts["other",] == "${B}"  # It would give the secret away.
    assert found.mask("123456") == "${A}"


def test_a_value_is_in_no_message(tree: dict[str, Any], registry: Registry) -> None:
    tree["environments"]["default"]["tools"][1]["options"] = {"precision": "${KEY}", "mode": "x-${KEY}"}
    tree["model"]["dtype"] = "${KEY}"
    tree["environments"]["default"]["parser"] = "${KEY}"
    with pytest.raises(ConfigError) as caught:
        check_config(tree, registry=registry, environ={"KEY": SECRET})
    assert SECRET not in str(caught.value)
    text = "\n".join(caught.value.problems)
    assert "precision: Input should be a valid integer, unable to parse string as an integer (got '${KEY}')" in text
    assert "no parser named '${KEY}'" in text
    assert "(got 'x-${KEY}')" in text


def test_a_missing_variable_is_one_problem_and_the_others_are_found_too(
    tree: dict[str, Any], registry: Registry
) -> None:
    tree["environments"]["default"]["tools"][1]["options"] = {"precision": "${NONE}", "kee": "${NONE}", "rate": 0}
    tree["environments"]["default"]["tools"][0] = "${NONE}"
    with pytest.raises(ConfigError) as caught:
        check_config(tree, registry=registry, environ={})
    paths = [line.partition(": ")[0].removeprefix("environments.default.") for line in caught.value.problems]
    assert paths == [
        "tools[0]",
        "tools[1].options.precision",
        "tools[1].options.kee",
        "tools[1].options.rate",
        "tools[1].options.kee",
    ]


def test_masking_leaves_short_values_alone() -> None:
    found = interpolate("${A} ${B} ${C}", {"A": "1", "B": "long-one", "C": "long-one-more"})
    assert found.mask("1: long-one, long-one-more") == "1: ${B}, ${C}"


@pytest.mark.parametrize("secret", ['pass"word\\n', "sl/ash & blank+%", "schlüssel\n", "\udcff\udcfe-odd"])
def test_masking_finds_a_value_however_it_is_quoted(secret: str) -> None:
    found = interpolate("${KEY}", {"KEY": secret})
    for text in (
        secret,
        repr(KeyError(secret)),
        json.dumps({"key": secret}),
        json.dumps({"key": secret}, ensure_ascii=False),
        f"https://host/{quote(secret, errors='surrogateescape')}",
        f"https://host/?{urlencode({'key': secret}, errors='surrogateescape')}",
    ):
        assert "${KEY}" in found.mask(text)
        assert secret not in found.mask(text)
