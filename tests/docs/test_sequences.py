"""Commands of a page run in the page's order, in one folder, as a reader types them.

Configs and models that need a GPU or a download are replaced by a tiny model's; the names of the runs and the options
are the page's. Commands that serve until Ctrl-C, or check the machine, are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, read_page
from test_commands import commands

PAGES = {
    "docs/howto/train-on-one-gpu.md": ("docs/examples/gsm8k/one_gpu.yaml", "one-gpu", ()),
    "docs/howto/resume-and-inspect.md": ("grpo.yaml", "grpo", ("first", "second", "third")),
}
"""Pages that are run: the config that they name, its run, and runs that they take for granted."""

NOT_RUN = {
    "docs/howto/bfcl.md": "downloads a benchmark",
    "docs/howto/cold-start.md": "trains for hours; tests/e2e/test_gsm8k_cold_start.py runs it shortened",
    "docs/howto/does-the-tool-help.md": "takes the quickstart's run, which takes minutes",
    "docs/howto/from-areal.md": "needs a checkout of AReaL",
    "docs/howto/from-rlfactory.md": "needs a checkout of RLFactory",
    "docs/howto/from-verl.md": "needs verl's data",
    "docs/howto/qwen-agent-tools.md": "needs qwen-agent",
    "docs/howto/reasoning-gym.md": "needs reasoning-gym",
    "docs/howto/reward-functions.md": "shows a rollout of a model to download",
    "docs/howto/start-a-project.md": "downloads a model; tests/e2e/test_first_run.py has `toolrl init`",
    "docs/howto/tool-integrated-reasoning.md": "downloads a model",
    "docs/howto/train-on-your-data.md": "downloads a model and data",
    "docs/tutorial/quickstart.md": "trains for minutes; tests/e2e/test_examples.py runs it shortened",
}
"""Pages with `toolrl eval` or `rollout` that aren't run here, with the reason."""
_MACHINE = ("doctor", "plan")
"""Commands whose result depends on the machine."""


def lines(page: str) -> Iterator[list[str]]:
    """The page's `toolrl` commands as words, without `toolrl`."""
    for block in read_page(ROOT / page).blocks:
        if block.language in ("sh", "console"):
            for program, *words in filter(None, commands(block)):
                if any(word.startswith("engine.") for word in words):
                    continue  # It tunes an engine that needs a GPU.
                if program == "toolrl" and words and words[0] not in _MACHINE and "--serve" not in words:
                    yield words


def test_pages_that_evaluate_are_run_or_have_a_reason() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("howto", "tutorial")
        for path in (ROOT / "docs" / folder).glob("*.md")
        if any(words[0] in ("eval", "rollout") for words in lines(str(path.relative_to(ROOT))))
    }
    assert found == {*PAGES, *NOT_RUN}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_in_its_order(page: str, own_place: Any, here: Any) -> None:
    named, run, given = PAGES[page]
    settings = {
        "model": {"path": "runs/warm"},
        "trainer": {"steps": 2, "keep_best": True},
        "evaluation": {"tasks": 4, "every": 1},
        "run": {"name": run},
    }
    config = own_place.config(settings)
    if given:
        done = here("train", config, "--json", place=own_place)
        assert done.returncode == 0, done.stderr
    runs: Path = own_place.folder / "runs"
    for name in given:
        shutil.copytree(runs / run, runs / name, symlinks=True)
    for words in lines(page):
        done = here(*(config if word == named else word for word in words), place=own_place)
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr)
