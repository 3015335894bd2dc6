"""Options of the search plugin."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from toolrl.config.frame import OldNames
from toolrl.types import Task
from toolrl_common.http_client import service_url
from toolrl_plugin_search.golds import gold_answers

MAX_TOPK = 1000
"""The most passages that one query may ask for."""
SEARCH_DESCRIPTION = "Search a collection of passages. Returns the passages that fit the query best."
INSTRUCTION = (
    "Answer the question. Search as often as you need to. "
    "End with the answer alone, without an explanation, between <answer> and </answer>."
)


def retrieve_url(url: str) -> str:
    """The address of `/retrieve`: as given, or with that path where the address has none. Raises ValueError."""
    return service_url(url, "/retrieve", "http://127.0.0.1:8000/retrieve")


def _address(url: str) -> str:
    retrieve_url(url)
    return url


class SearchOptions(BaseModel, extra="forbid"):
    """Options of the tools `search` and `query_rag`."""

    old_names: ClassVar[OldNames] = {"batch_wait": None, "batches_at_once": None}

    index: str | None = Field(
        None,
        min_length=1,
        description="Folder of an index, which this process searches; made by `toolrl search index`.",
    )
    url: Annotated[str, AfterValidator(_address)] | None = Field(
        None, description="Address of a retrieval server: with its path, or without one for `/retrieve`."
    )
    topk: int = Field(3, ge=1, le=MAX_TOPK, description="Passages that a call gets.")
    max_topk: int = Field(20, ge=1, le=MAX_TOPK, description="The most that a call may ask for by `topk`.")
    format: Literal["text", "json"] | None = Field(
        None,
        description='text: "Doc 1(Title: …) …", a line for each passage, as in Search-R1. json: the passages with '
        "their scores, as the server's answer has them. null: text for `search`, json for `query_rag`.",
    )
    max_passage_chars: int | None = Field(
        None, ge=1, description="A longer passage is cut to so many characters; null for no limit."
    )
    max_batch: int = Field(64, ge=1, le=1024, description="Queries that go together at most.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="With `url`: HTTP headers, such as a key: `Authorization: ${SEARCH_KEY}`."
    )
    request_timeout: float = Field(30.0, gt=0, le=3600, description="With `url`: seconds that one request may take.")
    patience: float | None = Field(
        60.0,
        ge=0,
        le=3600,
        description="With `url`: seconds that the server may take to come up when the run starts; null: it isn't asked "
        "before the first call.",
    )
    encoder: str | None = Field(
        None,
        min_length=1,
        description="With a dense `index`: folder of its encoder, where it isn't where it was when the index was made.",
    )
    device: str | None = Field(
        None, min_length=1, description="With a dense `index`: where the encoder runs, cpu or cuda; null for cpu."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SearchOptions:
        if (self.index is None) == (self.url is None):
            raise ValueError("give either `index`, a folder, or `url`, a server's address")
        return self


class SearchR1Options(BaseModel, extra="forbid"):
    """Options of the reward `search_r1`."""

    score: Literal["em", "f1"] = Field(
        "em",
        description="em: 1 where the answer is one of the task's, normalised. f1: the best share of common words.",
    )
    correct: float = Field(1.0, description="Value of a score of 1; a score of 0.5 is worth half of it.")
    wrong: float = Field(0.0, description="Value of a wrong answer between the tags; Search-R1 calls it format score.")
    missing: float = Field(0.0, description="Value where there is no answer between the tags.")
    step_factor: float = Field(
        0.0,
        ge=0,
        description="RLFactory's step reward, for each turn with calls: this, times the share of calls that could be "
        "read minus the share of those that couldn't, and minus a half of it where the first couldn't. 0 for none; "
        "RLFactory has 0.1.",
    )
    compat: Literal["rlfactory"] | None = Field(
        None,
        description="rlfactory: its formulas as they are, with `step_factor` as factor: unreadable calls behind the "
        "first count as good, and the form of the tags is part of the final reward. null: without that.",
    )

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task without an answer."""
        gold_answers(task)


class SearchR1DataOptions(BaseModel, extra="forbid"):
    """Options of the data set `search_r1`."""

    path: str | list[str] = Field(
        min_length=1,
        description="A .parquet, .jsonl or .json file, a glob, or several: Search-R1's, or question and answer.",
    )
    limit: int | None = Field(None, ge=1, description="Only the first so many questions.")
    prompt: Literal["question", "row"] = Field(
        "question",
        description="question: the bare question and `instruction`. row: the row's own `prompt`, which in Search-R1's "
        "files tells the model to write <search>.",
    )
    instruction: str = Field(INSTRUCTION, description="Put after each question; empty for none.")
    system_prompt: str | None = Field(None, description="A system message for each task, over the environment's.")
    environment: str | None = Field(None, description="The environment that the tasks run in.")
