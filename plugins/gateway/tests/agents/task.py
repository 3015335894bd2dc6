"""The question on stdin."""

import json
import sys

QUESTION = json.load(sys.stdin)["messages"][-1]["content"]
