"""The runs that core's tests of the run folder are made of, with their pages, and a browser that opens pages."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl.runs.folder import RunFolder
from toolrl_plugin_report.page import write_report

_SAMPLES = runpy.run_path(str(Path(__file__).parents[3] / "core" / "tests" / "runs" / "conftest.py"))
make_episode = _SAMPLES["make_episode"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    def make(name: str = "r", *given: Any, **more: Any) -> RunFolder:
        folder: RunFolder = _SAMPLES["build_run"](tmp_path / name, *given, **more)
        write_report(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """While it is open an event loop runs in this thread, so that no other module's `asyncio.run` would work."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if BROWSER is None:
        pytest.skip("no chromium or chrome is installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """`open_page(path or address, fragment, width=…)`: the page after its script has run. Neither the script nor the
    page's policy may complain, and no text may become script."""
    context, said = browser.new_context(), list[str]()

    def show(path: Path | str, fragment: str = "", width: int = 1400, height: int = 1000) -> Any:
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((path if isinstance(path, str) else path.as_uri()) + fragment)
        page.wait_for_selector("[data-ready=yes]")
        assert "hacked" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        return page

    yield show
    context.close()
    assert not said
