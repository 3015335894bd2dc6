"""Stand-in for verl's `verl.utils.reward_score.sandbox_fusion.utils`: one program, run in Sandbox Fusion. Needs the
plugin `sandbox-fusion`. Calls block, so make them from a thread."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from toolrl.errors import ToolError, ToolsetError

PATIENCE = 5.0
"""Seconds for which a busy sandbox is asked again."""
MEMORY_MB = 1024


def _process_single_case(
    case_index: int,
    stdin_data: Any,
    expected_output: Any,
    sandbox_fusion_url: str,
    generation: str,
    timeout: float,
    memory_limit_mb: int | str = MEMORY_MB,
    language: str = "python",
    concurrent_semaphore: Any = None,
    fn_name: str | None = None,
) -> tuple[bool | int, dict[str, Any]]:
    """What verl's gives: the status of the case, and metadata with `run_status`, `stdout`, `stderr` and so on. A text
    in the place of the memory limit is the language, as verl's guide has it."""
    from toolrl_plugin_sandbox_fusion.api import RunRequest
    from toolrl_plugin_sandbox_fusion.cases import Cases, verdict

    if isinstance(memory_limit_mb, str):
        language, memory_limit_mb = memory_limit_mb, MEMORY_MB
    case = Cases([stdin_data], [expected_output], fn_name).case(0, generation)
    request = RunRequest(case.code, language, case.stdin, timeout, timeout, memory_limit_mb)
    facts: dict[str, Any] = dict.fromkeys(("api_request_error", "api_response", "run_status", "exit_code", "duration"))
    facts |= {"case_index": case_index, "input": stdin_data, "expected_output": expected_output, "status": "api_error"}
    facts |= {"stdout": None, "stderr": None}
    try:
        with concurrent_semaphore or nullcontext():
            response = asyncio.run(_asked(sandbox_fusion_url, request))
    except (ToolError, ToolsetError) as error:
        return -1, {**facts, "api_request_error": str(error)}
    body = response.body()
    facts["api_response"] = body
    if run := body["run_result"]:
        facts |= {"run_status": run["status"], "exit_code": run["return_code"], "duration": run["execution_time"]}
        facts |= {key: run[key] or "" for key in ("stdout", "stderr")}
    status = verdict(response, case)
    return status.value, {**facts, "status": status.name.lower()}


async def _asked(url: str, request: Any) -> Any:
    from toolrl_common.http_client import patiently
    from toolrl_plugin_sandbox_fusion.api import SandboxClient

    async with SandboxClient(url) as client:
        return await patiently(lambda: client.run(request), PATIENCE)
