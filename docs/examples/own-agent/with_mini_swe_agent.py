"""mini-swe-agent: a shell in the folder of the episode. It drops turns without a call, and tells the model so."""

import json
import os
import sys

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

model = LitellmModel(model_name=f"openai/{os.environ['OPENAI_MODEL']}", cost_tracking="ignore_errors")
done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo ANSWER"
agent = DefaultAgent(
    model,
    LocalEnvironment(),
    system_template="Answer by calls of bash.",
    instance_template=f"{{{{task}}}} Submit the answer by `{done}`.",
    step_limit=8,
)
print(agent.run(json.load(sys.stdin)["messages"][-1]["content"])["submission"].strip())
