"""The engine `openai` with `dialect: sglang`, against a server that answers as SGLang's documentation says: what is
sent and read, stops, updates. Nobody has run it against SGLang itself here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

from sglang_server import ENDS, SglangServer, serving
from vllm_help import Stale, Weights, apart, ask, change, make_model, make_tokenizer, openai_engine

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import sglang
from toolrl_testing.checks import engines

PROMPT = tuple(range(40, 70))
TOLERANCE = 1e-4


def engine(server: SglangServer, module: Any, folder: Path, **options: Any) -> Any:
    return openai_engine(server.url, module, folder, dialect="sglang", **options)


async def test_samples_and_updates_are_the_trainers(tmp_path: Path) -> None:
    module, tokenizer = make_model(3), make_tokenizer()
    async with serving(make_model(), tokenizer) as server, engine(server, module, tmp_path) as running:
        for version in (0, 1, 2):
            if version:
                change(module, version)
                await running.update_weights(Weights(module, tokenizer, tmp_path / str(version), version), version)
            assert running.verified is not None
            assert running.verified < TOLERANCE
            settings = [
                Sampling(8, temperature=0.7, top_k=20, seed=1),
                Sampling(8, temperature=1.5, seed=2),
                Sampling(8, temperature=0.0),
            ]
            done = await ask(running, PROMPT, settings)
            for one, generation in zip(settings, done, strict=True):
                engines.check_generation(generation, one)
                assert (set(generation.versions), generation.cached) == ({version}, 7)
                assert apart(module, PROMPT, generation, one.temperature or 1.0) < TOLERANCE
        updates = [body for path, body in server.asked if path == "/update_weights_from_disk"]
        assert [body["flush_cache"] for body in updates] == [True] * 3, "at the start and at each update"


async def test_an_engines_contracts(tmp_path: Path) -> None:
    module = make_model(4)
    async with serving(module, make_tokenizer()) as server, engine(server, module, tmp_path) as running:
        await engines.check_sampling(running, PROMPT)
        await engines.check_sessions(running, PROMPT)
        await engines.check_cancel(running, PROMPT, times=20)
        await engines.check_versions(running, PROMPT, Weights(module, make_tokenizer(), tmp_path / "7"))


async def test_stop_ids_and_the_models_own_end(tmp_path: Path) -> None:
    import torch

    module = make_model(4, tied=False)
    async with serving(module, make_tokenizer()) as server, engine(server, module, tmp_path) as running:
        free = await running.generate(PROMPT, Sampling(16, temperature=0.0), session="a")
        assert free.finish == "length"
        stop = free.ids[5]
        cut = await running.generate(PROMPT, Sampling(16, temperature=0.0, stop_token_ids=(stop,)), session="a")
        assert cut.ids == free.ids[: free.ids.index(stop) + 1]
        assert (cut.finish, cut.stopped_by) == ("stop", stop)
        with torch.no_grad():
            server.module.lm_head.weight[ENDS] = server.module.lm_head.weight[stop] * 4
        free = await running.generate(PROMPT, Sampling(16, temperature=0.0), session="a")
        assert ENDS in free.ids[:-1], "without a stop id nothing ends a turn early"
        cut = await running.generate(PROMPT, Sampling(16, temperature=0.0, stop_token_ids=(1000,)), session="a")
        # SGLang can't have the one without the other.
        assert (cut.ids[-1], cut.finish, cut.stopped_by) == (ENDS, "stop", ENDS)


async def test_stop_strings_end_with_the_token_that_completes_them(tmp_path: Path) -> None:
    """Also one that the server passes over: `<tool_call>` is one token to the tokenizer, and eleven to this model."""

    module, tokenizer = make_model(4), make_tokenizer()
    async with serving(module, tokenizer) as server, engine(server, module, tmp_path) as running:
        free = await running.generate(PROMPT, Sampling(24, temperature=0.0), session="a")
        texts = [tokenizer.decode(list(free.ids[:n])) for n in range(len(free.ids) + 1)]
        stop = texts[-1][3:6]
        wanted = next(n for n, text in enumerate(texts) if stop in text)
        cut = await running.generate(PROMPT, Sampling(24, temperature=0.0, stop=("never", stop)), session="a")
        assert (cut.ids, cut.finish, cut.stopped_by) == (free.ids[:wanted], "stop", stop)

        spelled = [*tokenizer.encode("<tool_call", add_special_tokens=False), ord(">")]
        spelled[-1] = tokenizer.encode(">", add_special_tokens=False)[0]
        assert len(spelled) == 11
        script = iter([*spelled, 40, 41, 42, 43])
        server._step = lambda row, given, chance: [-1.0, next(script), None]  # type: ignore[method-assign]
        cut = await running.generate(PROMPT, Sampling(15, temperature=0.0, stop=("<tool_call>",)), session="a")
        assert cut.ids == tuple(spelled)
        assert (cut.finish, cut.stopped_by, len(cut.logprobs)) == ("stop", "<tool_call>", 11)


async def test_weights_that_are_not_taken_and_weights_that_are_others(tmp_path: Path) -> None:
    module, tokenizer = make_model(5), make_tokenizer()
    async with serving(make_model(), tokenizer) as server, engine(server, module, tmp_path) as running:
        with pytest.raises(EngineError, match="after the update to version 1 SGLang doesn't have"):
            await running.update_weights(Stale(make_model(9), module, tokenizer, tmp_path / "1"), 1)
        server.takes_weights = False
        with pytest.raises(EngineError, match="shape mismatch"):
            await running.update_weights(Weights(module, tokenizer, tmp_path / "2", 2), 2)


async def test_answers_of_other_weights_than_the_last_are_refused(tmp_path: Path) -> None:
    """A server that was started anew serves what it was started with, and says so."""
    async with serving(make_model(), make_tokenizer()) as server, engine(server, make_model(5), tmp_path) as running:
        assert len((await running.generate(PROMPT, Sampling(4), session="a")).ids) == 4
        server.module, server.version = make_model(), "default"
        with pytest.raises(EngineError, match="weights that it calls 'default', and was given '0' last"):
            await running.generate(PROMPT, Sampling(4), session="a")


# What is sent and read.


def test_a_request_is_written() -> None:
    sampling = Sampling(7, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, stop=("a", ""), stop_token_ids=(1,))
    sent = sglang.body((5, 6), sampling, (1 << 40) + 11)
    assert (sent["input_ids"], sent["return_logprob"]) == ([5, 6], True)
    told = sent["sampling_params"]
    assert (told["max_new_tokens"], told["temperature"], told["top_p"], told["top_k"]) == (7, 0.5, 0.9, 4)
    assert told["min_p"] == 0.1
    assert (told["stop"], told["stop_token_ids"], told["sampling_seed"]) == (["a"], [1], 11)
    assert (told["no_stop_trim"], told["skip_special_tokens"], told["ignore_eos"]) == (True, False, False)
    told = sglang.body((5,), Sampling(1, temperature=0.0), 1)["sampling_params"]
    assert (told["top_k"], told["ignore_eos"]) == (-1, True)
    assert not {"stop", "stop_token_ids", "sampling_seed"} & told.keys()


PIECES = ("a", "b", "ab", "ba", "<", ">", "<ab>", "é")


@given(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=20),
    st.lists(st.text("ab<>é", min_size=1, max_size=4), max_size=3),
)
def test_a_generation_is_cut_after_the_token_that_completes_a_stop_string(ids: list[int], stops: list[str]) -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in ids)

    whole = Generation(tuple(ids), (-0.1,) * len(ids), "length", None, versions=(0,) * len(ids))
    found = sglang.cut_at_stop(whole, stops, decode)
    ends = [n for n in range(1, len(ids) + 1) if any(stop in decode(ids[:n]) for stop in stops)]
    if not ends:
        assert found is whole
        return
    assert (found.ids, found.finish) == (tuple(ids[: ends[0]]), "stop")
    assert len(found.logprobs) == len(found.versions) == ends[0]
    text, stop = decode(found.ids), found.stopped_by
    assert stop in stops
    assert text.find(stop) + len(stop) == min(text.find(one) + len(one) for one in stops if one in text)


def answer(**told: Any) -> dict[str, Any]:
    given = {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
    }
    return {"text": "x", "output_ids": [5, 6], "meta_info": {**given, **told}}


def test_an_answer_is_read() -> None:
    stopped = answer(finish_reason={"type": "stop", "matched": "x"}, cached_tokens=3)
    assert sglang.generation(stopped, 4) == Generation((5, 6), (-0.5, -1.5), "stop", "x", versions=(4, 4), cached=3)
    assert sglang.generation(answer(finish_reason={"type": "stop", "matched": 6}), 0).stopped_by == 6
    assert sglang.generation(answer(finish_reason={"type": "stop", "matched": None}), 0).stopped_by == 6
    assert sglang.generation(answer(finish_reason={"type": "abort", "message": "x"}), 0).finish == "abort"
    assert sglang.generation(answer(output_token_logprobs=[[1e-7, 5, None], [-1.0, 6, "b"]]), 0).logprobs[0] == 0.0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "can't be read: .* valid dictionary"),
        ({"text": "x"}, r"meta_info\.output_token_logprobs: Field required"),
        (answer(output_token_logprobs=[[-1.0]]), r"output_token_logprobs\.0\.1: Field required"),
        (answer(output_token_logprobs=[[None, 5, None]]), "valid number"),
        (answer(output_token_logprobs=[[-math.inf, 5, None]]), "finite number"),
        (answer(output_token_logprobs=[[-1.0, 5, None]]), "other tokens"),
        (answer(output_token_logprobs=[[0.7, 5, None], [-1.5, 6, None]]), r"gave token 0 .* log-probability 0\.7"),
        (answer(output_token_logprobs=[[-0.5, 5.5, None], [-1.5, 6, None]]), "valid integer"),
        (answer(finish_reason=None), "None"),
        (answer(finish_reason={"type": "stop", "matched": [1, 2]}), "matched"),
        (answer(finish_reason={"type": "abort", "message": "too long", "status_code": 400}), "refuses .* too long"),
    ],
)
def test_an_answer_that_holds_no_sample_is_refused(said: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        sglang.generation(said, 0)


def test_the_probes_log_probabilities_are_read() -> None:
    entries = [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]
    assert sglang.prompt_logprobs(answer(input_token_logprobs=entries), [5, 6, 7]) == [-1.0, -2.0]
    with pytest.raises(EngineError, match="can't be verified"):
        sglang.prompt_logprobs(answer(), [5, 6, 7])
