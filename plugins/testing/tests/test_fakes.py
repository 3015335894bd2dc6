"""The fakes do what they say, exactly: other tests count on it."""

from __future__ import annotations

import asyncio

import pytest

from toolrl.errors import EngineError
from toolrl.types import CallRecord, Generation, Sampling, ToolCall, ToolResult
from toolrl_testing.fakes import END_ID, FakeChatFormat, ScriptedEngine, make_episode


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
        (Sampling(3, stop=("</x>",)), "ab<", "length", None),
        (Sampling(100), "ab</x>cd", "length", None),
        (Sampling(8, stop_token_ids=(END_ID,)), "ab</x>cd", "length", None),
    ],
)
def test_what_ends_a_text(sampling: Sampling, text: str, finish: str, stopped_by: str | None) -> None:
    generation = generate(ScriptedEngine(["ab</x>cd"]), sampling)
    assert generation.ids == tuple(map(ord, text))
    assert (generation.finish, generation.stopped_by) == (finish, stopped_by)
    assert len(generation.logprobs) == len(generation.versions) == len(text)


def test_an_episode_holds_together() -> None:
    record = CallRecord(ToolCall("f", {}), ToolResult("4"))
    episode = make_episode("call", "It is 4.", calls={0: [record]}, answer="4", metrics={"correct": 1.0})
    assert len(episode.ids) == len(episode.loss_mask) == len(episode.logprobs) == len(episode.weight_versions)
    assert not any(episode.loss_mask[: episode.prompt_length])
    for turn in episode.turns:
        (segment,) = turn.segments
        assert all(episode.loss_mask[segment.tokens[0] : segment.tokens[1]])
        assert FakeChatFormat().decode(episode.ids[segment.tokens[0] : segment.tokens[1]]).text == turn.text
    assert sum(episode.loss_mask) == sum(turn.sampled_tokens for turn in episode.turns)
    assert [message.role for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
    assert (episode.final_text, episode.answer, episode.correct, len(episode.calls)) == ("It is 4.", "4", 1.0, 1)
    assert make_episode().turns == ()
