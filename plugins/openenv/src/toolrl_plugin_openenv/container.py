"""A server in a Docker container of this machine, as OpenEnv's `from_docker_image` starts one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping

from toolrl.errors import ToolsetError

PORT = 8000
"""Where OpenEnv's images listen."""


class Container:
    """Runs an image. `stop` removes the container, also one that didn't start."""

    def __init__(self, image: str, env_vars: Mapping[str, str], where: str) -> None:
        self._image = image
        self._env_vars = env_vars
        self._where = where
        self._name = f"toolrl-openenv-{uuid.uuid4().hex[:12]}"

    async def start(self) -> str:
        """The server's address; the server may need a while yet. Raises ToolsetError."""
        check_docker(self._image, self._where)
        # Values stay out of the command line, which other users can read.
        given = [word for name in self._env_vars for word in ("-e", name)]
        run = ("docker", "run", "-d", "--name", self._name, "-p", f"127.0.0.1::{PORT}", *given, self._image)
        status, said = await _output(*run, env={**os.environ, **self._env_vars})
        if status:
            raise ToolsetError(
                f"`docker run` of the image {self._image!r} failed: {said[-1000:]}",
                where=self._where,
                hint="`docker info` says whether its daemon runs, `docker images` whether the image is there.",
            )
        status, place = await _output("docker", "port", self._name, f"{PORT}/tcp")
        if status or ":" not in place:
            _, said = await _output("docker", "logs", "--tail", "20", self._name)
            raise ToolsetError(f"a container of {self._image!r} ended at once: {said[-1000:]}", where=self._where)
        return f"http://{place.split()[-1]}"

    async def stop(self) -> None:
        """Remove the container."""
        if shutil.which("docker") is not None:
            await _output("docker", "rm", "-f", self._name)


def check_docker(image: str, where: str | None = None) -> None:
    """Raises ToolsetError where there is no docker."""
    if shutil.which("docker") is None:
        raise ToolsetError(
            f"image {image!r} needs docker, which isn't on PATH; install it, or start the environment's server "
            "yourself and give its `url`",
            where=where,
        )


async def _output(*words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """A command's exit status, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    try:
        said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode(errors="replace").strip()
