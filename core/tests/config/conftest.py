"""A registry of small components of every kind, and a config that uses them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from toolrl import Component, hookimpl
from toolrl.config.model import AlgorithmFrame, Config, ModelFrame, TrainerFrame
from toolrl.errors import ConfigError
from toolrl.kinds import KINDS
from toolrl.plugins.registry import Registry

MODULE = "config_test_components"


class Inner(BaseModel):
    """Options inside options."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="Where.")
    retries: int = Field(1, ge=0, description="How often.")


class Options(BaseModel):
    """Options with every shape that a message has to point into."""

    model_config = ConfigDict(extra="forbid")

    old_names: ClassVar = {"digits": "precision"}

    precision: int = Field(3, ge=1, description="Digits.")
    mode: Literal["fast", "exact"] = Field("fast", description="How.")
    path: str | list[str] = Field("x", description="A file or several.")
    server: Inner | None = Field(None, description="A server.")
    servers: list[Inner] = Field(default_factory=list, description="Several.")
    named: dict[str, Inner] = Field(default_factory=dict, description="By name.")
    key: str = Field("", description="A secret.")
    rate: float = Field(1.0, gt=0, le=10, description="Speed.")


class Model(ModelFrame):
    """The model, as a trainer knows it."""

    model_config = ConfigDict(extra="forbid")

    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="Precision.")


class Algorithm(AlgorithmFrame):
    """The objective, as a trainer knows it."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar = {"kl_penalty": "kl_coef"}

    kl_coef: float = Field(0.0, ge=0, allow_inf_nan=False, description="Weight.")
    entropy_coef: float = Field(0.0, allow_inf_nan=False, description="Weight.")


class Trainer(TrainerFrame):
    """The loop, as a trainer knows it."""

    model_config = ConfigDict(extra="forbid")

    learning_rate: float = Field(1e-6, gt=0, allow_inf_nan=False, description="Rate.")
    betas: tuple[Annotated[float, Field(lt=1)], Annotated[float, Field(lt=1)]] = Field(
        (0.9, 0.95), description="Decay."
    )
    eps: float = Field(1e-8, gt=0, description="Small.")
    offload: list[str] = Field(default_factory=list, description="What waits on the CPU.")

    def check_sharded(self) -> None:
        if "critic" in self.offload:
            raise ConfigError("trainer.offload: critic is not supported")


class Sections(BaseModel):
    """What a trainer brings."""

    model: Model
    algorithm: Algorithm = Field(default_factory=lambda: Algorithm())
    trainer: Trainer = Field(default_factory=lambda: Trainer())

    @classmethod
    def remarks(cls, config: Config) -> list[str]:
        return ["trainer.betas: they are wide"] if config.trainer.betas[1] > 0.99 else []  # type: ignore[attr-defined]

    @classmethod
    def missing(cls, config: Config, data: Collection[str]) -> list[str]:
        return ["model.dtype: needs another chip"] if config.model.dtype == "bfloat16" else []  # type: ignore[attr-defined]


class Thing:
    """Does what every kind asks for, and keeps what it was built with."""

    def __init__(self, options: Any, context: Any) -> None:
        self.options = options
        self.context = context

    def stops(self) -> None: ...
    def parse(self) -> None: ...
    def render_results(self) -> None: ...
    async def score(self) -> None: ...


class Half(Thing):
    """Lacks what a parser must have."""

    parse = None  # type: ignore[assignment]


def failing(options: Any, context: Any) -> None:
    """A target that raises."""
    raise RuntimeError("no such server")


def _hook(kind: str, *components: Component[Any]) -> Callable[[], list[Component[Any]]]:
    def hook() -> list[Component[Any]]:
        return list(components)

    return hookimpl(hook)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Components by kind, named as the frame's defaults are where it has any."""
    targets = ModuleType(MODULE)
    vars(targets).update(Options=Options, Thing=Thing, Half=Half, failing=failing, NotAModel=dict, Sections=Sections)
    sys.modules[MODULE] = targets

    def component(name: str, target: str = "Thing", options: str | None = "Options") -> Component[Any]:
        return Component(name, f"{MODULE}:{target}", options=f"{MODULE}:{options}" if options else None)

    demo = ModuleType("demo")
    given = {
        "parsers": [component("hermes"), component("half", "Half"), component("failing", "failing")],
        "tools": [component("calculator"), component("bare", options=None)],
        "rewards": [component("exact", options=None), component("badmodel", options="NotAModel")],
        "engines": [component("transformers")],
        "datasets": [component("rows"), component("lost", options="Nothing")],
        "chat_formats": [component("template")],
        "trainers": [component("torch", options="Sections")],
        "observers": [component("console")],
    }
    for kind, components in given.items():
        setattr(demo, KINDS[kind].hook, _hook(kind, *components))
    made = Registry.from_modules({"demo": demo})
    assert made.unusable() == []
    yield made
    del sys.modules[MODULE]


@pytest.fixture
def tree() -> dict[str, Any]:
    """A config without mistakes."""
    made: dict[str, Any] = yaml.safe_load("""
        model: {path: ./tiny}
        data: {train: rows, eval: {use: demo/rows, options: {precision: 5}}}
        environments:
          default:
            tools: [bare, {use: calculator, options: {precision: 2}, policy: {timeout: 5}, as: {calculator: calc}}]
            rewards: [exact]
        trainer: {steps: 3}
    """)
    return made
