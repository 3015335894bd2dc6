"""run-folder.md: what a run leaves behind, from the docstrings of the modules that write it."""

from __future__ import annotations

from pagemaker.markdown import page, prose
from pagemaker.source import module_doc

_PARTS = (
    ("The folder", "runs.folder"),
    ("Metrics", "runs.metrics"),
    ("Episodes", "runs.episodes"),
    ("Records of episodes", "runs.records"),
    ("Checkpoints", "loop.checkpoints"),
    ("The log", "runs.log"),
    ("The report", "report:page"),
)

_LINKS = """\
The names of the metrics are on [their own page](metrics.md), the fields of an episode on
[that of types](types.md#episode). How to go on with a run and look into it:
[resume and inspect](../howto/resume-and-inspect.md)."""


def make() -> str:
    """The page."""
    parts = [_LINKS]
    for title, module in _PARTS:
        parts += [f"## {title}", prose(module_doc(module))]
    return page("The run folder", *parts)
