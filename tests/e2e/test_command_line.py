"""Bad plugins beside good ones."""

from __future__ import annotations

from typing import Any

TOOL = """
    from toolrl import Component, hookimpl

    @hookimpl
    def toolrl_tools():
        yield Component("lookup", "nowhere:lookup", summary="Looks something up.")
"""
BAD = {
    "absent": "import no_such_package_of_anybody\n",
    "misspelled": TOOL.replace("toolrl_tools", "toolrl_tool"),
    "asynchronous": TOOL.replace("def toolrl_tools", "async def toolrl_tools"),
}


def test_bad_plugins_stop_no_run_that_does_not_name_them(own_place: Any) -> None:
    site = own_place.site()
    for name, source in BAD.items():
        site.add(name, {"plugin": source})
    site.add("tomorrow", {"plugin": TOOL}, requires="toolrl>=9")
    for name in ("red", "blue"):
        site.add(name, {"plugin": TOOL})
    listed = own_place.toolrl("list-plugins", "--json", site=site).json()["plugins"]
    statuses = {plugin["name"]: plugin["status"] for plugin in listed}
    assert [statuses[name] for name in (*BAD, "tomorrow", "red")] == ["broken"] * 3 + ["incompatible", "ok"]
    config = own_place.config({"model": {"path": "runs/warm"}, "trainer": {"steps": 1}})
    checked = own_place.toolrl("config", "check", config, site=site)
    assert (checked.returncode, checked.stderr) == (0, "")
    done = own_place.toolrl("train", config, "--json", site=site)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.json()["steps"] == 1
