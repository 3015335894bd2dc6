"""The scripted engine does what it says, exactly: other tests count on it."""

from __future__ import annotations

import asyncio

import pytest

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_testing.fakes import END_ID, ScriptedEngine


def generate(engine: ScriptedEngine, sampling: Sampling, session: str = "s", prompt: str = "") -> Generation:
    return asyncio.run(engine.generate(tuple(map(ord, prompt)), sampling, session=session))


ENDED = Sampling(100, stop_token_ids=(END_ID,))


def test_each_session_hears_the_script_from_the_first_text_on() -> None:
    engine = ScriptedEngine(["one", "two"])
    assert generate(engine, ENDED, "a").ids == (*map(ord, "one"), END_ID)
    assert generate(engine, ENDED, "a").ids[:3] == tuple(map(ord, "two"))
    assert generate(engine, ENDED, "b").ids[:3] == tuple(map(ord, "one"))
    with pytest.raises(EngineError, match="script has 2 texts, and session 'a' asks for one more"):
        generate(engine, ENDED, "a")
    assert engine.calls == 3
    assert [record.session for record in engine.generated] == ["a", "a", "b"]
    asyncio.run(engine.close("a"))
    assert generate(engine, ENDED, "a").ids[:3] == tuple(map(ord, "one"))
    assert engine.closed == ["a"]


@pytest.mark.parametrize(
    ("sampling", "text", "finish", "stopped_by"),
    [
        (Sampling(100, stop=("</x>",)), "ab</x>", "stop", "</x>"),
        (Sampling(100, stop=("cd", "</x>")), "ab</x>", "stop", "</x>"),
        (Sampling(3, stop=("</x>",)), "ab<", "length", None),
        (Sampling(6, stop=("</x>",)), "ab</x>", "stop", "</x>"),
        (Sampling(100), "ab</x>cd", "length", None),
        (Sampling(8, stop_token_ids=(END_ID,)), "ab</x>cd", "length", None),
    ],
)
def test_what_ends_a_text(sampling: Sampling, text: str, finish: str, stopped_by: str | None) -> None:
    generation = generate(ScriptedEngine(["ab</x>cd"]), sampling)
    assert generation.ids == tuple(map(ord, text))
    assert (generation.finish, generation.stopped_by) == (finish, stopped_by)
    assert len(generation.logprobs) == len(generation.versions) == len(text)
