"""The harnesses of the gateway keep the contracts of a plugin."""

from __future__ import annotations

import sys
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


class TestContract(PluginContract):
    plugin = "gateway"

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        agent = tmp_path / "agent.py"
        agent.write_text(AGENT, encoding="utf-8")
        return {"target": f"{agent}:play"} if name == "python" else {"command": [sys.executable, str(agent)]}
