"""What ranks tell each other, and how they end when one of them can't go on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.loop.ranks import ONE

START = """
import asyncio, json, os, sys, traceback
from toolrl_plugin_torch.sharding.process_group import join
from toolrl.loop.ranks import OtherRankError, RankError

def caught(work):
    try:
        return work()
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def part(value, fail=None):
    await asyncio.sleep(0)
    if fail is not None:
        raise ValueError(fail)
    return value

ranks = join("cpu", 60.0)
mine = ranks.rank
said = {}
"""


@pytest.fixture
def said(on_ranks: Any, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`said(size, body, variables=…)`: what each of the ranks puts into `said`."""

    def run(size: int, body: str, variables: Sequence[Mapping[str, str]] = ({},) * 8) -> list[dict[str, Any]]:
        script = tmp_path / "body.py"
        end = "\njson.dump(said, open(sys.argv[1], 'w'))\nos._exit(0)\n"
        script.write_text(START + textwrap.dedent(body) + end)
        on_ranks(size, [sys.executable, str(script), str(tmp_path / "said-{rank}.json")], variables)
        return [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(size)]

    return run


Said = Callable[..., list[dict[str, Any]]]


def test_two_ranks_meet_and_tell_what_keeps_them_apart(said: Said) -> None:
    """Their store listens at the given address alone."""
    body = """
    import threading

    addresses = {line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"}
    port = f"{int(os.environ['MASTER_PORT']):04X}"
    said["listens"] = sorted(a.partition(":")[0] for a in addresses if a.endswith(":" + port))
    said["six"] = [line.split()[1] for line in open("/proc/net/tcp6") if line.split()[1].endswith(":" + port)]
    said["unsendable"] = caught(lambda: ranks.gather(threading.Lock(), "notes"))
    said["apart"] = caught(lambda: ranks.gather(1, f"point {mine}"))
    """
    first, second = said(2, body)
    assert (first["listens"], first["six"]) == (["0100007F"], [])
    assert "rank 0 can't send what it has at 'notes': cannot pickle '_thread.lock' object" in str(first["unsendable"])
    assert "the ranks went apart: rank 0 is at 'point 0', rank 1 is at 'point 1'" in str(first["apart"])
    assert "rank 1 is at 'point 1', rank 0 is at 'point 0'" in str(second["apart"])


def test_one_process_gets_back_what_it_gives() -> None:
    assert ONE.gather({"a": 1}, "x") == [{"a": 1}]
    assert ONE.broadcast("b", "x") == "b"
    assert ONE.sum([1.5, 2.5], "x") == [1.5, 2.5]
    assert ONE.largest(3, "x") == 3
    assert ONE.by_first(lambda: 7, "x") == 7

    async def five() -> int:
        return 5

    assert asyncio.run(ONE.all_of(five(), "x")) == [5]
    assert asyncio.run(ONE.from_first(five(), "x")) == 5


def test_one_process_imports_nothing_of_several() -> None:
    names = (".process_group", ".sharded", ".fsdp")
    look = (
        "import sys, toolrl_plugin_torch.trainer; "
        f"print([n for n in sys.modules if n.endswith({names}) and 'toolrl' in n])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_three_ranks_tell_each_other(said: Said) -> None:
    body = """
    said["gather"] = ranks.gather(mine * 10, "numbers")
    said["broadcast"] = ranks.broadcast(f"of {mine}", "a word")
    said["sum"] = ranks.sum([0.1, mine], "sums")
    said["largest"] = ranks.largest(mine, "the largest")
    said["first"] = ranks.by_first(lambda: mine + 40, "what the first one does")
    said["all_of"] = asyncio.run(ranks.all_of(part(mine), "parts"))
    said["picky"] = caught(lambda: ranks.by_first(lambda: 1 / 0, "a mistake of the first"))
    said["failed"] = caught(lambda: asyncio.run(ranks.all_of(part(mine, "bad" if mine == 1 else None), "parts again")))
    """
    found = said(3, body)
    for rank, one in enumerate(found):
        assert one["gather"] == [0, 10, 20]
        assert one["broadcast"] == "of 0"
        assert one["sum"] == [pytest.approx(0.3, abs=1e-16), 3.0]
        assert (one["largest"], one["first"]) == (2, 40)
        assert one["all_of"] == [0, 1, 2]
        assert "division by zero" in str(one["picky"])
        assert str(one["picky"]).startswith("ZeroDivisionError" if rank == 0 else "OtherRankError: rank 0 ended")
        expected = "ValueError: bad" if rank == 1 else "OtherRankError: rank 1 ended the run: ValueError: bad"
        assert one["failed"] == expected


def test_an_interruption_of_one_rank_ends_all_at_the_same_point(said: Said) -> None:
    body = """
    async def main():
        if mine == 1:
            asyncio.get_running_loop().call_later(0.1, ranks.interrupt)
        await ranks.all_of(asyncio.sleep(0 if mine == 0 else 600), "a long part")

    said["first"] = caught(lambda: asyncio.run(main()))
    said["met"] = ranks.gather(mine, "the checkpoint")
    """
    for one in said(2, body):
        assert one == {"first": "cancelled", "met": [0, 1]}


def test_a_rank_that_lost_another_reports_why_that_one_failed(said: Said) -> None:
    body = """
    def work():
        with ranks.explaining():
            if mine == 1:
                try:
                    raise OSError("the disk is full")
                finally:
                    ranks.gather(0, "the checkpoint")
            ranks.gather(0, "the groups")

    said["why"] = caught(work)
    """
    first, second = said(2, body)
    assert second["why"] == "OSError: the disk is full"
    assert first["why"] == "OtherRankError: rank 1 ended the run: OSError: the disk is full"
