"""hooks.md: every hook, and what the components that it registers must do."""

from __future__ import annotations

import ast
import re

from pagemaker.markdown import anchor, code, page, prose, table, visible
from pagemaker.source import ClassDoc, classes, module_doc, tree
from toolrl.kinds import KINDS

_INTRO = """\
The file is `core/src/toolrl/hookspecs.py`. How to write a plugin: [write a plugin](../howto/write-a-plugin.md). The
data that components are handed: [types](types.md)."""

_EVENTS = """\
They fire in the controller process, in its main thread, for the observers that the config names, in its order, then for
those of every run. An observer is an object with some of these methods; they need no mark and may leave out arguments
that they don't use. An observer only reads. One that raises is logged and counted, and hides nothing from the others. A
misspelled event, an `async def` and an argument that the event doesn't have are refused when the run is built."""

_WITH = {"Toolset": ("ToolSession", "EnvironmentSession", "Reply", "RewritesHistory"),
         "RolloutEngine": ("ChatEngine", "WeightSource", "HoldsStill", "Rests", "ScoresTokens"),
         "ChatFormat": ("ChecksTools",),
         "ToolParser": ("ReadsTokens", "StopsByTools"),
         "Reward": ("ScoresGroups", "StartsAndStops"),
         "PolicyLoss": ("LossTerms",),
         "TrainerBackend": ("TrainedModel",),
         "Observer": ("RunInfo", "StepReport")}  # fmt: skip
"""Protocol to what else belongs to it."""


def make() -> str:
    """The page."""
    specs = _specs()
    known = classes("protocols") | classes("agent_protocols") | classes("training_protocols")
    parts = [prose(module_doc("hookspecs")), _INTRO]
    rows = [
        (
            f"[{code(kind.hook)}](#{anchor(kind.hook)})",
            code(kind.name),
            code(kind.protocols[0]),
            visible(_first(specs[kind.hook])),
        )
        for kind in KINDS.values()
    ]
    parts += ["## Registration", table(("hook", "kind", "of", "registers"), rows)]
    parts += ["### Component", *_class(classes("component")["Component"], level=4, heading=False)]
    parts += ["### What a target is called with", prose(module_doc("protocols").partition("\n\n")[2])]
    parts += _class(known["BuildContext"], level=4)
    for kind in KINDS.values():
        parts += [f"### {kind.hook}", prose(ast.get_docstring(specs[kind.hook]) or "")]
        protocol = kind.protocols[0]
        for name in (protocol, *_WITH.get(protocol, ())):
            parts += _class(known[name], level=4)
        if protocol == "Toolset":
            parts += _class(known["EpisodeContext"], level=4) + _class(known["Model"], level=4)
    parts += ["## Events", _EVENTS]
    registration = {kind.hook for kind in KINDS.values()}
    parts += [_event(function) for name, function in specs.items() if name not in registration]
    return page("Hooks", *parts)


def _specs() -> dict[str, ast.FunctionDef]:
    """The hook specifications by name, in their order."""
    return {
        node.name: node
        for node in tree("hookspecs").body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(it) == "hookspec" for it in node.decorator_list)
    }


def _first(function: ast.FunctionDef) -> str:
    return re.split(r"(?<=\.) Named in", " ".join((ast.get_docstring(function) or "").split()))[0]


def _class(node: ClassDoc, level: int, *, heading: bool = True) -> list[str]:
    """A class with its fields and methods."""
    parts = [f"{'#' * level} {node.name}"] if heading else []
    parts.append(prose(node.doc))
    if node.fields:
        rows = [(code(field.name), code(field.annotation), _default(field.default), field.doc) for field in node.fields]
        parts.append(table(("field", "type", "default", "meaning"), rows))
    for method in node.methods:
        parts.append(f"```text\n{method.signature}\n```")
        if method.doc:
            parts.append(prose(method.doc))
    return parts


def _default(text: str | None) -> str:
    if text is None:
        return "required"
    made = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
    return code(f"{made[1]}()" if made else text)


def _event(function: ast.FunctionDef) -> str:
    arguments = ast.unparse(function.args)
    doc = prose(ast.get_docstring(function) or "")
    return f"### {function.name}\n\n```text\ndef {function.name}(self, {arguments}) -> None\n```\n\n{doc}"
