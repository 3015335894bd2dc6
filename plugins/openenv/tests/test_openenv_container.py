"""A server in a container. A program of the name `docker` stands in for Docker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from openenv_help import box_of, episode
from openenv_wire_server import TOOLS, FakeServer

from toolrl.errors import ToolsetError
from toolrl_plugin_openenv.options import OpenEnvOptions
from toolrl_plugin_openenv.toolset import build
from toolrl_testing import make_build_context

pytestmark = pytest.mark.usefixtures("nothing_is_left")

DOCKER = f"""#!{sys.executable}
import os, pathlib, sys
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
with (folder / "calls").open("a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] == "run":
    if "broken:1" in words:
        sys.exit("Unable to find image 'broken:1' locally")
    (folder / "level").write_text(os.environ.get("LEVEL", ""))
    print("WARNING: the platform differs", file=sys.stderr)
    print("4f5e")
elif words[0] == "port":
    if not (folder / "port").exists():
        sys.exit("Error: No public port '8000/tcp' published")
    print("127.0.0.1:" + (folder / "port").read_text())
elif words[0] == "logs":
    print("no module named envs")
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program `docker`."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def of(image: str, **more: Any) -> OpenEnvOptions:
    return OpenEnvOptions.model_validate({"image": image, **more})


async def test_an_image_is_run_and_removed(docker: Path) -> None:
    async with FakeServer(tools=TOOLS).running() as server:
        (docker / "port").write_text(server.url.rpartition(":")[2])
        async with box_of(of("echo-env:latest", env_vars={"LEVEL": "secret"})) as box, episode(box) as session:
            assert [spec.name for spec in session.specs()] == ["count", "echo"]
    started, asked, removed = (docker / "calls").read_text().splitlines()
    name = removed.split()[-1]
    assert started == f"run -d --name {name} -p 127.0.0.1::8000 -e LEVEL echo-env:latest"
    assert (asked, removed) == (f"port {name} 8000/tcp", f"rm -f {name}")
    assert (docker / "level").read_text() == "secret"


@pytest.mark.parametrize(
    ("image", "said"), [("broken:1", "Unable to find image 'broken:1'"), ("dead:1", "ended at once: no module named")]
)
async def test_a_container_that_does_not_start(docker: Path, image: str, said: str) -> None:
    with pytest.raises(ToolsetError, match=f"(?s){image}.*{said}"):
        async with box_of(of(image)):
            pass
    assert (docker / "calls").read_text().splitlines()[-1].startswith("rm -f toolrl-openenv-")


async def test_without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolsetError, match="needs docker"):
        of("echo-env:latest").check_files()
    toolset = build(of("echo-env:latest"), make_build_context("openenv"))
    with pytest.raises(ToolsetError, match="needs docker, which isn't on PATH.*`url`"):
        await toolset.start()
    await toolset.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either `url` or `image`"),
        ({"url": "http://a", "image": "b"}, "either `url` or `image`"),
        ({"image": "--privileged"}, "image"),
        ({"image": "a b"}, "image"),
    ],
)
def test_what_is_no_server(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OpenEnvOptions.model_validate(options)
