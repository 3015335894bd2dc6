"""The JSON Schema says what the check says."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from toolrl.config.components import component_fields
from toolrl.config.load import check_config
from toolrl.config.model import Config
from toolrl.config.override import apply_overrides
from toolrl.config.schema import DIALECT, config_schema
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry


@pytest.fixture
def validator(registry: Registry) -> jsonschema.Draft202012Validator:
    schema, problems = config_schema(registry)
    assert [line.partition(":")[0] for line in problems] == ["demo/badmodel", "demo/lost"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    return jsonschema.Draft202012Validator(schema)


GOOD = [
    "seed=5",
    "seed='${SEED:-3}'",
    "engine=demo/transformers",
    "engine={use: transformers, options: {precision: 2, server: {url: x}}}",
    "environments.default.tools=[calculator, {use: bare, weight: 0.5}]",
    "environments.default.tools[1].policy.timeout=3",
    "environments.default.history=[{use: bare, timeout: 5}]",
    "environments.default.parser='${PARSER:-hermes}'",
    "sft={data: rows}",
    "data.train=null",
]
BAD = [
    "seed=-1",
    "seed=many",
    "trainer.stps=5",
    "engine=nope",
    "engine.options={precision: 2}",
    "engine={use: transformers, options: {precision: 0}}",
    "engine={use: transformers, options: {server: {}}}",
    "engine={use: transformers, opts: {}}",
    "environments.default.tools=[{use: bare, options: {x: 1}}]",
    "environments.default.tools[1].policy.timeout=-1",
    "environments.default.tools[1].policy.timout=1",
    "environments.default.history=[{use: bare, weight: 0.5}]",
    "environments.default.rewards=[calculator]",
    "data.train={options: {}}",
    "model={}",
]


@pytest.mark.parametrize("override", [*GOOD, *BAD])
def test_the_schema_and_the_check_agree(
    tree: dict[str, Any], registry: Registry, validator: jsonschema.Draft202012Validator, override: str
) -> None:
    changed = copy.deepcopy(tree)
    assert apply_overrides(changed, [override])[1] == []
    assert validator.is_valid(changed) == (override in GOOD)
    if override in GOOD:
        check_config(changed, registry=registry, environ={})
    else:
        with pytest.raises(ConfigError):
            check_config(changed, registry=registry, environ={})


def test_every_field_that_names_a_component_offers_those_of_its_kind(registry: Registry) -> None:
    schema, _ = config_schema(registry)
    assert "$defs/ComponentUse" not in str(schema)
    assert {kind for _, _, kind in component_fields()} <= set(schema["$defs"])
    assert schema["$defs"]["tools"]["anyOf"][0]["anyOf"][0]["enum"] == [
        "bare", "calculator", "demo/bare", "demo/calculator",
    ]  # fmt: skip
    assert schema["$defs"]["tools.demo.calculator"]["properties"]["precision"]["description"] == "Digits."


def test_every_field_of_the_frame_is_described() -> None:
    undocumented = []
    definitions = Config.model_json_schema()["$defs"]
    for model, definition in [("Config", Config.model_json_schema()), *definitions.items()]:
        for name, field in definition["properties"].items():
            if not field.get("description") and (model, name) not in SELF_EXPLAINING and "$ref" not in field:
                undocumented.append(f"{model}.{name}")
    assert undocumented == []


SELF_EXPLAINING: set[tuple[str, str]] = {
    (model, name)
    for model in ("TrainerConfig", "SftConfig", "OptimizerConfig")
    for name in ("learning_rate", "betas", "eps", "steps")
} | {("Config", "seed"), ("Config", "environments")}
