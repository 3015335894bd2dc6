"""The harnesses of the gateway keep the contracts of a plugin."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl_testing import PluginContract

AGENT = """
import json, os, urllib.request

def play(episode):
    body = {"model": episode.model, "messages": episode.messages}
    headers = {"Authorization": f"Bearer {episode.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{episode.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]

class FromEnvironment:
    model, messages = "agent", [{"role": "user", "content": "?"}]
    base_url, api_key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")

if __name__ == "__main__":
    play(FromEnvironment)
"""


def play_elsewhere(port: int) -> None:
    """Takes, plays and ends the episodes that are offered at a port, until there is no server any more."""

    def post(path: str, key: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"x-api-key": key}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    served = False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            begun = post("/episodes/next", "key-of-the-run")
            served = True
            post("/v1/chat/completions", begun["api_key"], messages=begun["task"]["messages"])
            post(f"/episodes/{begun['id']}/end", "key-of-the-run", answer="4")
        except (OSError, ValueError):
            if served:
                return
            time.sleep(0.02)


class TestContract(PluginContract):
    plugin = "gateway"

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if name == "external":
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            threading.Thread(target=play_elsewhere, args=(port,), daemon=True).start()
            return {"port": port, "key": "key-of-the-run"}
        agent = tmp_path / "agent.py"
        agent.write_text(AGENT, encoding="utf-8")
        return {"target": f"{agent}:play"} if name == "python" else {"command": [sys.executable, str(agent)]}
