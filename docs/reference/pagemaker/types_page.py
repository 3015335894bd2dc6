"""types.md: the data that flows through a run, and every exception."""

from __future__ import annotations

from pagemaker.markdown import code, page, prose, table
from pagemaker.source import ClassDoc, classes, module_doc

_INTRO = """\
Everything here is in `toolrl.types`, the exceptions in `toolrl.errors`."""


def make() -> str:
    """The page."""
    parts = [_INTRO, prose(module_doc("types"))]
    for node in (it for name in ("message_types", "types", "token_types") for it in classes(name).values()):
        parts += _class(node)
    parts += ["## Exceptions", prose(module_doc("errors")), _errors()]
    return page("Types", *parts)


def _class(node: ClassDoc) -> list[str]:
    parts = [f"## {node.name}", prose(node.doc)]
    rows = [(code(it.name), code(it.annotation), it.doc) for it in node.fields]
    if rows:
        parts.append(table(("field", "type", "meaning"), rows))
    derived = [it for it in node.methods if it.is_property]
    if derived:
        rows = [(code(it.name), code(it.signature.rpartition("-> ")[2]), it.doc) for it in derived]
        parts.append(table(("derived", "type", "meaning"), rows))
    for method in node.methods:
        if not method.is_property:
            parts += [f"```text\n{method.signature}\n```", prose(method.doc)]
    return parts


def _errors() -> str:
    rows = []
    for node in classes("errors").values():
        fault = next((it.default or "" for it in node.fields if it.name == "fault"), "")
        rows.append((code(node.name), code(", ".join(node.bases)), fault.strip("'\""), node.doc.replace("\n\n", " ")))
    return table(("exception", "is a", "fault", "meaning"), rows)
