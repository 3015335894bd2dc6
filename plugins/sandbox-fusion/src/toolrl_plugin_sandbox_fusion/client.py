"""The HTTP client of the API.

    async with SandboxClient("http://127.0.0.1:8080") as client:
        response = await client.run(RunRequest("print(6 * 7)"))

Trying again is left to the caller: `toolrl_common.http_client.patiently` does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolrl.errors import ToolError
from toolrl_common.http_client import JsonClient, service_url
from toolrl_plugin_sandbox_fusion.api import RunRequest, RunResponse

MARGIN_SECONDS = 10.0
"""What a request may take besides compiling and running."""


class SandboxApiError(ToolError):
    """The sandbox couldn't be asked, or answered with something that is no answer; the same request won't do better."""

    kind: ClassVar[str] = "sandbox_error"


class SandboxClient(JsonClient):
    """Asks one address. Used inside `async with`."""

    service = "sandbox"
    hint = "Correct `sandbox_fusion_url`, or the key in `headers`."
    error = SandboxApiError
    transient = frozenset({429, 502, 503, 504})

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, max_response_bytes: int = 16 << 20
    ) -> None:
        super().__init__(run_code_url(url), headers, max_bytes=max_response_bytes)

    async def run(self, request: RunRequest) -> RunResponse:
        """Run a program. Raises TransientToolError, SandboxApiError, and ToolsetError for an address, a key or a path
        that can't be right."""
        seconds = request.compile_timeout + request.run_timeout + MARGIN_SECONDS
        answer = await self.post(request.body(), seconds=seconds)
        try:
            return RunResponse.read(answer)
        except ValueError as error:
            raise self.unreadable(error) from error


def run_code_url(url: str) -> str:
    """The address of `/run_code`: as given, or with that path where the address has none. Raises ValueError."""
    return service_url(url, "/run_code", "http://127.0.0.1:8080/run_code")
