"""The simulation of large runs gives times that can be worked out by hand, and the arithmetic its formulas."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

MODULES = (
    "scale_parameters", "scale_arithmetic", "scale_worker", "scale_simulation", "simulate_scale", "scale_inputs",
    "schedule_slow_tools",
)  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import scale_arithmetic
    import scale_parameters
    import scale_simulation
    import scale_worker
    import simulate_scale

    yield SimpleNamespace(
        parameters=scale_parameters, arithmetic=scale_arithmetic, simulation=scale_simulation, script=simulate_scale,
        worker=scale_worker,
    )  # fmt: skip
    for name in MODULES:
        sys.modules.pop(name, None)


def _scenario(bench: Any, **changes: Any) -> Any:
    """Four groups of two episodes of two turns of ten tokens at 0.1 s, a call of 1 s between them: 3 s an episode. An
    update of 2 s."""
    scenario = bench.worker.Scenario(
        workers=1, concurrency=8, prompts=4, group=2, turns=2, turn_tokens=10, token=lambda count: 0.1,
        tool=bench.worker.Tool(1.0, sigma=0.0), update=2.0,
    )  # fmt: skip
    return replace(scenario, **changes)


def _step(bench: Any, steps: int = 3, **changes: Any) -> float:
    found: float = bench.simulation.simulate(_scenario(bench, **changes), steps).step
    return found


def test_taking_turns_takes_the_rollout_and_the_update(bench: Any) -> None:
    assert _step(bench) == pytest.approx(3.0 + 2.0)


def test_weights_are_waited_for(bench: Any) -> None:
    assert _step(bench, publish=0.5, receive=0.25) == pytest.approx(3.0 + 2.0 + 0.75)


def test_with_half_the_places_a_rollout_takes_twice_as_long(bench: Any) -> None:
    assert _step(bench, concurrency=4) == pytest.approx(6.0 + 2.0)


def test_two_workers_take_half_the_time_of_one(bench: Any) -> None:
    one = bench.simulation.round_seconds(_scenario(bench, concurrency=4), 8)
    two = bench.simulation.round_seconds(_scenario(bench, concurrency=4, workers=2), 8)
    # Sixteen episodes of 3 s, four or eight at once.
    assert (one, two) == (pytest.approx(12.0), pytest.approx(6.0))


def test_an_engine_that_slows_down_with_its_batch(bench: Any) -> None:
    # Eight sequences: 0.8 s a token, for ten tokens of each of two turns, and a call.
    assert _step(bench, token=lambda count: 0.1 * count) == pytest.approx(8.0 + 1.0 + 8.0 + 2.0)


def test_sequences_that_join_and_leave_share_the_engine(bench: Any) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        engine, ended = bench.worker.Engine(lambda count: float(count), 2), list[float]()
        engine.generate(3.0, lambda: ended.append(loop.time()))
        await asyncio.sleep(1.0)
        engine.generate(1.0, lambda: ended.append(loop.time()))
        await asyncio.sleep(10.0)
        return ended

    # Alone until 1 s, when one token of three is made; both at half the speed until 3 s; the last token alone.
    assert bench.simulation.run_in_virtual_time(main()) == [pytest.approx(3.0), pytest.approx(4.0)]


def test_an_engine_that_is_held_makes_nothing(bench: Any) -> None:
    async def main() -> tuple[list[float], float]:
        loop = asyncio.get_running_loop()
        engine, ended = bench.worker.Engine(lambda count: 1.0, 1), list[float]()
        engine.generate(3.0, lambda: ended.append(loop.time()))
        await asyncio.sleep(1.0)
        await engine.hold(5.0)
        await asyncio.sleep(10.0)
        return ended, engine.standing

    assert bench.simulation.run_in_virtual_time(main()) == ([pytest.approx(8.0)], pytest.approx(5.0))


def test_ranks_wait_for_the_one_with_the_most_groups(bench: Any) -> None:
    # Of four groups three ranks have two, one and one, with places for one at a time.
    assert _step(bench, workers=3, concurrency=2, colocated=True) == pytest.approx(6.0 + 2.0)


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_with_staleness_a_step_takes_the_longer_part(bench: Any, staleness: int) -> None:
    scenario = _scenario(bench, staleness=staleness, concurrency=64)
    assert bench.simulation.simulate(replace(scenario, update=5.0), 6, warm=6).step == pytest.approx(5.0)
    # The other way round one worker has no more than eight places: one step's episodes at a time, 3 s each.
    slow = bench.simulation.simulate(replace(scenario, update=1.0, concurrency=8), 6, warm=6)
    assert slow.step == pytest.approx(3.0)
    assert slow.staleness_max <= staleness


def test_the_shares_of_time_add_up(bench: Any) -> None:
    found = bench.simulation.simulate(_scenario(bench, receive=1.0), 4)
    # Of 6 s: 3 of rollout, 2 of update, 1 of weights; the engine decodes for 2 and stands still for 1.
    assert (found.waiting, found.updating, found.handing) == (
        pytest.approx(3 / 6),
        pytest.approx(2 / 6),
        pytest.approx(1 / 6),
    )
    assert (found.decoding, found.standing, found.idle) == (
        pytest.approx(2 / 6),
        pytest.approx(1 / 6),
        pytest.approx(3 / 6),
    )
    assert found.in_tools == pytest.approx(1 / 3)
    assert found.episodes_a_second == pytest.approx(8 / 6)


def test_a_driver_that_is_busy_all_the_time_sets_the_pace(bench: Any) -> None:
    costs = bench.worker.Costs(episode=1.0)
    found = bench.simulation.simulate(_scenario(bench, update=0.0, staleness=4, workers=4, costs=costs), 24, warm=6)
    # Eight episodes of a step at a second each; groups that were read before counting began weigh little.
    assert found.step == pytest.approx(8.0, rel=0.05)
    assert found.driver == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_never_more_in_flight_than_there_are_places_and_no_token_too_old(bench: Any, seed: int) -> None:
    chance = random.Random(seed)
    staleness, concurrency = chance.randint(0, 3), chance.randint(1, 6)
    scenario = _scenario(
        bench, staleness=staleness, concurrency=concurrency, workers=chance.randint(1, 4), group=chance.randint(1, 4),
        spread=0.7, tool=bench.worker.Tool(2.0), costs=bench.worker.Costs(0.01, 0.01, 0.01, 0.01),
        message=0.01, receive=0.5, seed=seed,
    )  # fmt: skip
    found = bench.simulation.simulate(scenario, 5, warm=2)
    assert found.most_in_flight <= concurrency
    assert found.staleness_max <= staleness


def test_the_same_seed_gives_the_same_run(bench: Any) -> None:
    scenario = _scenario(bench, spread=0.5, tool=bench.worker.Tool(1.0), staleness=1, workers=2)
    first, again = (bench.simulation.simulate(scenario, 4) for _ in range(2))
    assert first == again
    assert bench.simulation.simulate(replace(scenario, seed=1), 4) != first


def test_tools_have_the_mean_that_they_should(bench: Any) -> None:
    chance = random.Random(0)
    drawn = [bench.worker.Tool(0.5).seconds(chance) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, rel=0.05)
    assert bench.worker.Tool(0.0).seconds(chance) == 0.0
    assert max(bench.worker.Tool(0.5, cap=1.0).seconds(chance) for _ in range(2000)) == 1.0


def test_tools_that_wait_cost_what_they_cost_the_real_schedule(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`schedule_slow_tools.py` runs real episodes; with tools that always take as long as each other, and its clock
    jumping too, both are the same to the second."""
    import schedule_slow_tools as real

    monkeypatch.setattr(real.random.Random, "lognormvariate", lambda self, mu, sigma: 1.0)
    constant = replace(bench.script.SLOW, mean=1.0, sigma=0.0)
    monkeypatch.setattr(bench.script, "SLOW", constant)
    for mode, staleness in (("in turns", 0), ("max_staleness: 1", 1), ("max_staleness: 4", 4)):
        measured = bench.simulation.run_in_virtual_time(real.measure(real.MODES[mode], 6))
        assert bench.script.slow_tools(staleness, 6, 1) == [pytest.approx(measured, abs=0.01)], mode


# Arithmetic.


def _setting(bench: Any, **load: Any) -> Any:
    """A model and a machine of round numbers."""
    parameters = bench.parameters
    machine = parameters.Machine(
        peak_flops=1e15, memory_bytes_s=1e12, memory_bytes=100e9, nvlink_bytes_s=100e9, network_bytes_s=10e9,
        host_bytes_s=1e9, disk_bytes_s=1e9, utilisation=0.5, decode_share=0.5, link_share=1.0, hop_s=0.0,
    )  # fmt: skip
    model = parameters.Model("1B", 1e9, 10, 1, 100, 0.1e9, 1)
    asked = {"prompts": 8, "group": 2, "prompt_tokens": 1000, "turns": 1, "turn_tokens": 1000, "microbatch": 8000}
    measured = parameters.Measured(
        pickled_bytes_an_episode=1e6, unpickle_s=0.01, publish_bytes_s=1e9, receive_bytes_s=2e9,
        node_bytes_s=0.5e9, gloo_bytes_s=2e9,
    )  # fmt: skip
    return bench.arithmetic.Setting(model, parameters.Load(**(asked | load)), machine, measured)


def test_arithmetic_of_decoding(bench: Any) -> None:
    setting = _setting(bench)
    # 2 GB of weights and ten sequences of 1,500 tokens of 4,000 bytes at half of 1 TB/s; of operations 2e9 a token at
    # half of 1e15 for half a prompt of 1,000 tokens over 1,000 sampled ones.
    assert setting.model.kv_bytes == 4000
    assert setting.token_seconds(10) == pytest.approx((2e9 + 10 * 1500 * 4000) / 0.5e12 + 10 * 4e-6 * 0.5)
    # Eight engines have one group of two each, and more engines than groups help nobody.
    assert setting.rollout_seconds(8) == pytest.approx(1000 * setting.token_seconds(2))
    assert setting.rollout_seconds(64) == setting.rollout_seconds(8)
    assert setting.places() == int((90e9 - 2e9) / (4000 * 2000))


def test_arithmetic_of_an_update(bench: Any) -> None:
    setting = _setting(bench)
    # Eight prompts once and sixteen answers: 24,000 positions, on four ranks one micro-batch each.
    assert setting.load.trained == 24_000
    assert setting.computing_seconds(4) == pytest.approx(8e9 * 24_000 / (4 * 0.5e15))
    assert setting.collective_bytes(4) == pytest.approx(8e9 * 3 / 4)
    assert setting.collective_seconds(4) == pytest.approx(6e9 / 100e9)
    # More than a node: the slower network. One rank has nobody to tell.
    assert setting.collective_seconds(16) == pytest.approx(7.5e9 / 10e9)
    assert setting.collective_seconds(1) == setting.groups_seconds(1) == 0.0
    # 8 P operations of a token against 8 P bytes of a micro-batch.
    assert setting.break_even(4) == pytest.approx(0.5e15 * 0.75 / 100e9)
    assert setting.update_seconds(4) == pytest.approx(max(0.096, 0.06) + 3e9 / 100e9)
    # Sixteen episodes read by each rank; over two nodes, eight times 16 MB through an Ethernet of 1 GB/s.
    assert setting.groups_seconds(8) == pytest.approx(0.16)
    assert setting.groups_seconds(16) == pytest.approx(0.128 + 0.16)


def test_arithmetic_of_weights(bench: Any) -> None:
    moved = _setting(bench).weights(32)
    # 2 GB to four nodes over 1 GB/s, or down a tree of 32 workers, six deep.
    assert (moved.publish, moved.star, moved.receive) == (2.0, 8.0, 1.0)
    assert (moved.file, moved.gloo, moved.nccl) == (10.0, 12.0, pytest.approx(0.2))
    # To one node no faster than two stores told each other.
    assert _setting(bench).weights(8).star == 4.0
    assert moved.parts("object_store") == (2.0, 9.0)
    assert moved.parts("gloo") == (0.0, 12.0)


def test_arithmetic_of_memory_is_that_of_the_page(bench: Any) -> None:
    # "Seven billion parameters on eight ranks: 14 GB + 14 GB", docs/howto/train-on-several-gpus.md.
    model = replace(bench.parameters.QWEN_7B, parameters=7e9, apart=0.0, layers=10**9)
    setting = bench.arithmetic.Setting(model, bench.parameters.Load())
    assert setting.rank_bytes(8) == pytest.approx(28e9, rel=1e-6)


def test_the_split_is_the_one_whose_longer_part_is_shortest(bench: Any) -> None:
    setting = _setting(bench, prompts=64)
    longer = [max(setting.rollout_seconds(gpus), setting.update_seconds(8 - gpus)) for gpus in range(1, 8)]
    assert bench.arithmetic.split_of(setting, 8) == longer.index(min(longer)) + 1


# The script.


def test_the_script_writes_what_it_prints(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inputs.json").write_text(json.dumps({"report_s": 0.5, "deal_8_s": 1.0}))
    arguments = ["--steps", "1", "--staleness", "0", "1", "--tool", "0.5", "--load", "growing", "--json",
                 str(tmp_path / "out.json"), "--measured", str(tmp_path / "inputs.json")]  # fmt: skip
    assert bench.script.main(arguments) == 0
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["inputs"]["report_s"] == 0.5
    assert [(row["staleness"], row["colocated"]) for row in told["rows"]] == [(0, True), (0, False), (1, False)]
    printed = capsys.readouterr().out.splitlines()
    assert [f"{row['episodes_a_second']:.1f}" for row in told["rows"]] == [
        text.split(" | ")[3]
        for text in printed
        if text.startswith("| 8 |") and ("split," in text or "in turns" in text)
    ]
    line = " | ".join(f"{row['episodes_a_second']:.1f}" for row in told["rows"])
    assert printed[-1] == f"| 8 | 0.5 | {line} |"
    assert bench.script.main(["--read", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| GPUs | tool, s | colocated | split, 0 | split, 1 |", "| --- | --- | --- | --- | --- |", printed[-1]
    ]  # fmt: skip


def test_what_is_measured_is_what_is_read(bench: Any) -> None:
    import scale_inputs

    from toolrl.cluster.messages import pack_group, unpack_group

    group = scale_inputs.a_group()
    load = bench.parameters.Load()
    assert len(group.episodes) == load.group
    assert {len(episode.ids) for episode in group.episodes} == {load.length}
    assert {episode.sampled_tokens for episode in group.episodes} == {load.sampled}
    assert unpack_group(pack_group(group)) == group
    found = {**scale_inputs.episodes_part(), "deal_512_s": asyncio.run(scale_inputs.deal_part(4))}
    assert found.keys() <= bench.parameters.Measured.__dataclass_fields__.keys()
    assert all(value > 0 for value in found.values())


def test_a_file_of_something_else_is_refused(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="scale_inputs.py --json"):
        bench.parameters.read_measured(tmp_path / "list.json")
    with pytest.raises(SystemExit):
        bench.script.main(["--gpus", "4"])


def test_the_arithmetic_is_printed_for_all_sizes(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.arithmetic.main(["--json", str(tmp_path / "out.json")]) == 0
    told = json.loads((tmp_path / "out.json").read_text())
    assert set(told) == {"7B", "32B", "limits", "break_even"}
    assert len(told["7B"]) == 6
    printed = capsys.readouterr().out
    assert "1,024 GPUs, growing" in printed
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    shown = set(page.splitlines())
    for line in printed.splitlines():
        if line.startswith("|") and "---" not in line:
            assert line in shown, "docs/explanation/scale.md has the tables that the script prints"
