"""LangGraph: two branches work on the question in parallel, and a third prompt joins them: three trajectories."""

import json
import operator
import sys
from os import environ
from typing import Annotated, TypedDict

from calculator import calculator
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent

model = ChatOpenAI(model=environ["OPENAI_MODEL"])
agent = create_react_agent(model, [calculator])


class State(TypedDict):
    question: str
    found: Annotated[list[str], operator.add]


def work(hint):
    return lambda state: {"found": [agent.invoke({"messages": [hint, state["question"]]})["messages"][-1].content]}


def join(state):
    return {"found": [model.invoke(f"{state['question']} It is one of {sorted(state['found'])}.").content]}


graph = StateGraph(State).add_node("fast", work("Be fast.")).add_node("exact", work("Be exact.")).add_node("join", join)
graph.add_edge(START, "fast").add_edge(START, "exact").add_edge(["fast", "exact"], "join").add_edge("join", END)
print(graph.compile().invoke({"question": json.load(sys.stdin)["messages"][-1]["content"], "found": []})["found"][-1])
