"""Callables as tools take them: functions, methods, decorated ones, `functools.partial`, objects with `__call__`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolrl.protocols import EpisodeContext
from toolrl.tools.docstrings import read_docstring

_AROUND = {"Optional", "Union", "None", "Annotated"}
"""Names that a written hint of the context may have around it."""
_PARTIAL = inspect.cleandoc(functools.partial.__doc__ or "")


def name_of(function: Callable[..., Any]) -> str:
    """The name of the function, also behind functools.partial; that of the class for an object."""
    inner = function
    while isinstance(inner, functools.partial) and not hasattr(inner, "__name__"):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that are still to be given. What functools.partial binds by keyword isn't among them: in Python's
    signature it is a default, which a model would read and could replace."""
    bound = {name for layer in _layers(function) if isinstance(layer, functools.partial) for name in layer.keywords}
    if isinstance(function, functools.partial):  # A new one, because Python's signature follows its __wrapped__.
        function = functools.partial(function.func, *function.args, **function.keywords)
    return {name: it for name, it in inspect.signature(function).parameters.items() if name not in bound}


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated as EpisodeContext, or None.

    Looks at annotations as they are written, so that one imported under TYPE_CHECKING is found too.
    """
    return next((name for name, it in parameters_of(function).items() if _is_context(it.annotation)), None)


def documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description in the docstring, and those of the parameters.

    An object's is that of its class, then that of its `__call__`; what one leaves out, the other gives.
    """
    names, text = parameters_of(function), ""
    described: dict[str, str] = {}
    for written in _docstrings(function):
        own, of_parameters = read_docstring(written, names)
        text, described = text or own, {**of_parameters, **described}
    return text, described


def resolved_hints(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], where: str
) -> dict[str, Any]:
    """Hints as types. Only those of the model's parameters: others may name what exists for type checkers alone."""
    written = {n: p.annotation for n, p in parameters.items() if p.annotation is not inspect.Parameter.empty}
    inner = list(_layers(function))[-1]
    if not hasattr(inner, "__globals__"):
        inner = inspect.unwrap(type(inner).__call__)
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__=written), getattr(inner, "__globals__", {}), include_extras=True
        )
    except NameError as error:
        raise TypeError(
            f"{where}: the hint of a parameter can't be resolved: {error}. Define or import the type at module level."
        ) from error


def _layers(function: Callable[..., Any]) -> Iterator[Any]:
    """The callable, and what it wraps or binds, to the innermost."""
    layer: Any = function
    for _ in range(100):  # a wrapper may name itself
        yield layer
        inner = layer.func if isinstance(layer, functools.partial) else getattr(layer, "__wrapped__", None)
        if inner is None:
            return
        layer = inner


def _docstrings(function: Callable[..., Any]) -> Iterator[str]:
    """Docstrings that an author wrote, the outermost first."""
    for layer in _layers(function):
        own: tuple[Any, ...] = (layer,)
        if not (isinstance(layer, type | functools.partial) or inspect.isroutine(layer)):
            # The class of an object that wraps a function says how it wraps; the function's docstring is its own.
            own = (layer,) if hasattr(layer, "__wrapped__") else (type(layer), type(layer).__call__)
        for it in own:
            text = inspect.getdoc(it) if inspect.isroutine(it) else getattr(it, "__doc__", None)
            # A dataclass without a docstring has its signature, defaults included.
            made = dataclasses.is_dataclass(it) and str(text).startswith(f"{type(layer).__name__}(")
            if text and inspect.cleandoc(text) != _PARTIAL and not made:
                yield text


def _is_context(annotation: Any) -> bool:
    """Whether a hint, as type or as text, is EpisodeContext, or that or None."""
    if annotation is EpisodeContext:
        return True
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        bare = re.sub(r"""(["']).*?\1(?=\s*\])""", "", annotation)  # Annotated[…, "text"]
        names = {name.rpartition(".")[2] for name in re.findall(r"[\w.]+", bare)}
        return "EpisodeContext" in names and names - {"EpisodeContext"} <= _AROUND
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _is_context(typing.get_args(annotation)[0])
    return origin in (typing.Union, types.UnionType) and any(map(_is_context, typing.get_args(annotation)))
