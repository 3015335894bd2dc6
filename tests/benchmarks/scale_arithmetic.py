"""How long each part of a step takes by arithmetic, on 8, 64 and 1,024 GPUs, and where it saturates.

    python tests/benchmarks/scale_arithmetic.py                         # tables
    python tests/benchmarks/scale_arithmetic.py --measured INPUTS.json  # with figures of `scale_inputs.py --json`

Two loads: `fixed` is 64 prompts of 16 episodes each step, however many GPUs there are; `growing` is two prompts for
each GPU. Two placements: `colocated`, where every GPU samples and then trains, and `split`, where each does one of
both; of the splits in eighths that one is taken whose longer part is shortest. The formulas:

- decoding: a token of all sequences of an engine takes the time to read the weights and all keys and values once, at a
  share of the memory's bandwidth, or that of its operations, where that is longer; prompts and tools' answers cost
  operations. Groups stay together, so no more engines have work than there are groups.
- update: 8 P operations a position, one forward pass of them for gradient checkpointing; for each micro-batch FSDP2
  brings the weights together twice (2 P bytes each) and scatters the float32 gradients (4 P), beside the computing;
  after the step the float32 weights are brought together once. Attention's own operations (some 5 % at these
  lengths) and the optimizer's are left out.
- weights: into buckets by one thread, from the first node to each other one, out of the buckets by one thread; the
  trainer waits for all of it, and engines stand still from the second part on.
- groups: every rank gets all episodes, over its node's Ethernet.
- a colocated step also waits for its episodes to be written into the run's folder; a step of a split run with
  staleness is the longest of what engines, trainers and the driver do.
- driver: processor time for an episode, all of it in one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scale_parameters import QWEN_7B, QWEN_32B, Load, Machine, Measured, Model, read_measured, table

GPUS = (8, 64, 1024)
SPARE = 0.9
"""Of a GPU's memory, for weights, keys and values."""


@dataclass(frozen=True)
class Setting:
    """What is computed: all else follows."""

    model: Model
    load: Load
    machine: Machine = field(default_factory=Machine)
    measured: Measured = field(default_factory=Measured)

    def places(self) -> int:
        """Episodes whose keys and values an engine can hold."""
        tp = self.model.tensor_parallel
        free = SPARE * tp * self.machine.memory_bytes - self.model.bytes
        return int(free / (self.model.kv_bytes * self.load.length))

    def token_seconds(self, batch: int) -> float:
        """For one token of so many sequences of one engine, the prompts and answers that go with it included."""
        machine, model, load = self.machine, self.model, self.load
        tp = model.tensor_parallel
        context = load.prompt_tokens + (load.length - load.prompt_tokens) / 2
        read = (model.bytes + batch * context * model.kv_bytes) / (tp * machine.memory_bytes_s * machine.decode_share)
        flops = 2 * model.parameters / (tp * machine.peak_flops * machine.utilisation)
        read_in = load.prompt_tokens / load.group + (load.turns - 1) * load.result_tokens
        return max(read, batch * flops) + batch * flops * read_in / load.sampled

    def rollout_seconds(self, gpus: int, *, tool: float = 0.0) -> float:
        """Of a step, where all episodes are equally long; `tool` is the time of a call."""
        load = self.load
        engines = min(max(1, gpus // self.model.tensor_parallel), load.prompts)
        batch = math.ceil(load.prompts / engines) * load.group
        waves = math.ceil(batch / self.places())
        decoding = load.sampled * self.token_seconds(math.ceil(batch / waves))
        return waves * (decoding + (load.turns - 1) * tool)

    def link(self, ranks: int) -> float:
        """Bytes a second of a collective over so many ranks."""
        machine = self.machine
        fast = ranks <= machine.gpus_a_node
        return machine.link_share * (machine.nvlink_bytes_s if fast else machine.network_bytes_s)

    def microbatches(self, ranks: int) -> int:
        """Of each rank."""
        return max(1, math.ceil(self.load.trained / ranks / self.load.microbatch))

    def computing_seconds(self, ranks: int) -> float:
        """Of a step's passes."""
        return (
            8 * self.model.parameters * self.load.trained / (ranks * self.machine.peak_flops * self.machine.utilisation)
        )

    def collective_bytes(self, ranks: int) -> float:
        """That a rank receives and sends in a step's passes."""
        return self.microbatches(ranks) * 8 * self.model.parameters * (ranks - 1) / ranks

    def collective_seconds(self, ranks: int) -> float:
        hops = self.microbatches(ranks) * 3 * (self.model.layers + 1) * (ranks - 1) * self.machine.hop_s
        return self.collective_bytes(ranks) / self.link(ranks) + hops

    def break_even(self, ranks: int) -> float:
        """Tokens of a micro-batch that takes as long to compute as its weights and gradients take to move."""
        moved = (ranks - 1) / ranks / self.link(ranks)
        return moved * self.machine.peak_flops * self.machine.utilisation

    def whole_seconds(self, ranks: int) -> float:
        """To bring the new weights together in float32, tensor by tensor, some twelve of a layer."""
        size = 4 * self.model.parameters * (ranks - 1) / ranks
        return size / self.link(ranks) + 12 * self.model.layers * (ranks - 1) * self.machine.hop_s

    def update_seconds(self, ranks: int) -> float:
        """Computing and collectives go on side by side."""
        return max(self.computing_seconds(ranks), self.collective_seconds(ranks)) + self.whole_seconds(ranks)

    def groups_bytes(self) -> float:
        """Of a step, as ranks tell each other."""
        return self.load.episodes * self.measured.pickled_bytes_an_episode

    def groups_seconds(self, ranks: int) -> float:
        """For all ranks to have all groups: the ranks of a node share its Ethernet, and each reads all by itself."""
        if ranks == 1:
            return 0.0
        machine, one = self.machine, self.measured
        local = min(ranks, machine.gpus_a_node)
        sent = (
            0.0
            if ranks <= machine.gpus_a_node
            else local * self.groups_bytes() / (machine.host_bytes_s * machine.link_share)
        )
        return sent + self.load.episodes * one.unpickle_s

    def nodes(self, gpus: int) -> int:
        return math.ceil(gpus / self.machine.gpus_a_node)

    def weights(self, rollout_gpus: int) -> Transfer:
        """To the workers of a split run."""
        machine, nodes, size = self.machine, self.nodes(rollout_gpus), self.model.bytes
        workers = max(1, rollout_gpus // self.model.tensor_parallel)
        host = machine.host_bytes_s * machine.link_share
        return Transfer(
            publish=size / self.measured.publish_bytes_s,
            star=max(nodes * size / host, size / self.measured.node_bytes_s),
            file=(1 + nodes) * size / machine.disk_bytes_s,
            gloo=math.ceil(math.log2(workers + 1)) * size / min(host, self.measured.gloo_bytes_s),
            nccl=size / (machine.network_bytes_s * machine.link_share),
            receive=size / self.measured.receive_bytes_s,
        )

    def driver_seconds(self, workers: int) -> float:
        """Processor time of the driver for an episode."""
        one = self.measured
        dealing = one.order_s + one.deal_512_s * workers / 512
        return one.report_s + one.bring_s + one.unpack_s + one.record_s + one.credit_s + dealing / self.load.group

    def rank_bytes(self, ranks: int) -> float:
        """Of a rank's GPU before activations: the whole copy, the shards, what is brought together."""
        model = self.model
        layer = (model.parameters - model.apart) / model.layers
        return model.bytes + 16 * model.parameters / ranks + 8 * (model.apart + layer)


@dataclass(frozen=True)
class Transfer:
    """Seconds to bring weights to all workers, part by part."""

    publish: float
    """Into buckets, by the trainer's process."""
    star: float
    """Over Ethernet, all from the first node: what the object store comes to where all ask at once. A node takes in no
    faster than was measured between two."""
    file: float
    """Into a file system that all nodes share, and from there to each node."""
    gloo: float
    """By gloo's broadcast over Ethernet, a tree of all workers, from memory to memory; each branch no faster than was
    measured."""
    nccl: float
    """By a broadcast over InfiniBand, in a pipeline from GPU to GPU."""
    receive: float
    """Out of the buckets, on each worker."""

    def parts(self, way: str) -> tuple[float, float]:
        """Seconds before engines stand still for new weights, and while they do, by way."""
        if way in ("gloo", "nccl"):
            return 0.0, self.gloo if way == "gloo" else self.nccl
        return self.publish, (self.star if way == "object_store" else self.file) + self.receive


def growing(gpus: int, load: Load) -> Load:
    """Two prompts for each GPU."""
    return replace(load, prompts=2 * gpus)


def split_of(setting: Setting, gpus: int) -> int:
    """GPUs that sample, so that the longer of rollout and update is shortest."""
    unit = max(setting.model.tensor_parallel, gpus // 8)
    return min(
        range(unit, gpus, unit),
        key=lambda rollout: max(setting.rollout_seconds(rollout), setting.update_seconds(gpus - rollout)),
    )


def column(setting: Setting, gpus: int) -> dict[str, float]:
    """All figures of one size."""
    rollout = split_of(setting, gpus)
    ranks = gpus - rollout
    moved = setting.weights(rollout)
    workers = max(1, rollout // setting.model.tensor_parallel)
    sampling, update = setting.rollout_seconds(rollout), setting.update_seconds(ranks)
    written = setting.load.episodes * setting.measured.record_s
    in_turns = setting.rollout_seconds(gpus) + setting.groups_seconds(gpus) + written + setting.update_seconds(gpus)
    standing = moved.star + moved.receive
    driving = setting.load.episodes * setting.driver_seconds(workers)
    step = max(sampling + standing, setting.groups_seconds(ranks) + update + moved.publish + standing, driving)
    rate = setting.load.episodes / max(sampling, update)
    return {
        "gpus": gpus,
        "episodes": setting.load.episodes,
        "rollout_gpus": rollout,
        "trainer_gpus": ranks,
        "colocated_rollout_s": setting.rollout_seconds(gpus),
        "colocated_update_s": setting.update_seconds(gpus),
        "colocated_step_s": in_turns,
        "split_rollout_s": sampling,
        "computing_s": setting.computing_seconds(ranks),
        "collective_s": setting.collective_seconds(ranks),
        "split_update_s": update,
        "collective_bytes": setting.collective_bytes(ranks),
        "written_s": written,
        "groups_bytes": setting.groups_bytes(),
        "groups_s": setting.groups_seconds(ranks),
        "weights_bytes": setting.model.bytes,
        **{f"weights_{name}_s": value for name, value in asdict(moved).items()},
        "split_step_s": step,
        "episodes_a_second": rate,
        "driver_share": rate * setting.driver_seconds(workers),
        "permits_share": rate * (setting.load.turns - 1) / setting.measured.permits_s,
        "rank_bytes": setting.rank_bytes(ranks),
    }


def seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.1f} %"


ROWS = (
    ("episodes of a step", "episodes", "{:,.0f}".format),
    ("**colocated**: rollout, s", "colocated_rollout_s", seconds),
    ("update, s", "colocated_update_s", seconds),
    ("step, all of it, s", "colocated_step_s", seconds),
    ("**split**: GPUs that sample", "rollout_gpus", "{:,.0f}".format),
    ("rollout, s", "split_rollout_s", seconds),
    ("update: computing, s", "computing_s", seconds),
    ("update: collectives, s", "collective_s", seconds),
    ("update: bytes a rank, GB", "collective_bytes", lambda value: seconds(value / 1e9)),
    ("update with the weights brought together, s", "split_update_s", seconds),
    ("groups to all ranks, MB", "groups_bytes", lambda value: f"{value / 1e6:,.0f}"),
    ("the same, s", "groups_s", seconds),
    ("episodes into the run's folder, by one process, s", "written_s", seconds),
    ("weights into buckets, s", "weights_publish_s", seconds),
    ("to the nodes, all from the first, s", "weights_star_s", seconds),
    ("to the nodes, by a shared file system, s", "weights_file_s", seconds),
    ("out of the buckets, s", "weights_receive_s", seconds),
    ("in place of all these: a broadcast by gloo, s", "weights_gloo_s", seconds),
    ("by NCCL, s", "weights_nccl_s", seconds),
    ("step with staleness, weights by the object store, s", "split_step_s", seconds),
    ("episodes a second, were there only rollout and update", "episodes_a_second", "{:.1f}".format),
    ("of the driver's one core", "driver_share", percent),
    ("of the cluster's limits, were every call limited", "permits_share", percent),
    ("a trainer's GPU before activations, GB", "rank_bytes", lambda value: seconds(value / 1e9)),
)


def shown(columns: Sequence[dict[str, float]], names: Sequence[str]) -> str:
    """A column for each."""
    rows = [[title, *(form(column[key]) for column in columns)] for title, key, form in ROWS]
    return table(["", *names], rows)


def limits(setting: Setting, gpus: int) -> dict[str, float]:
    """Episodes a second at which each shared part is busy all the time."""
    one = setting.measured
    workers = max(1, split_of(setting, gpus) // setting.model.tensor_parallel)
    return {
        "driver": 1 / setting.driver_seconds(workers),
        "driver without the record of episodes": 1 / (setting.driver_seconds(workers) - one.record_s),
        "cluster limits, nobody waits": one.permits_s / (setting.load.turns - 1),
        "cluster limits, seven in eight wait": one.contended_permits_s / (setting.load.turns - 1),
    }


def driver_table(measured: Measured) -> str:
    """Of what the driver's time for an episode is made up."""
    parts = (
        ("hears that it has ended: a report over Ray, and the next question", measured.report_s),
        ("gets its bytes with the group's report", measured.bring_s),
        ("makes them an episode again", measured.unpack_s),
        ("writes it into the run's folder, compressed", measured.record_s),
        ("credits it and makes it a sample", measured.credit_s),
        ("sends the order for its group, a sixteenth", measured.order_s / Load().group),
    )
    return table(["", "ms"], [[what, f"{1000 * value:.2f}"] for what, value in parts])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, metavar="FILE", help="figures of `scale_inputs.py --json`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    options = parser.parse_args(argv)
    measured = read_measured(options.measured)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model, kinds in ((QWEN_7B, ("fixed", "growing")), (QWEN_32B, ("growing",))):
        found[model.name] = columns = {}
        for kind, gpus in itertools.product(kinds, GPUS):
            load = Load() if kind == "fixed" else growing(gpus, Load())
            columns[f"{gpus:,} GPUs, {kind}"] = column(Setting(model, load, measured=measured), gpus)
        print(f"\n{model.name}\n\n{shown(list(columns.values()), list(columns))}")
    print(f"\nThe driver, for an episode\n\n{driver_table(measured)}")
    setting = Setting(QWEN_7B, growing(64, Load()), measured=measured)
    busy, rate = limits(setting, 64), found["7B"]["64 GPUs, growing"]["episodes_a_second"] / 64
    rows = [[name, f"{value:,.0f}", f"{value / rate:,.0f}"] for name, value in busy.items()]
    print("\n" + table(["busy all the time", "at episodes a second", "which is what so many GPUs make of 7B"], rows))
    shortest = {ranks: setting.break_even(ranks) for ranks in (8, 16)}
    print("\n" + table(["", "tokens"], [
        ["micro-batch whose computing is as long as its collectives, in a node", f"{shortest[8]:,.0f}"],
        ["over two nodes", f"{shortest[16]:,.0f}"],
    ]))  # fmt: skip
    if options.json:
        options.json.write_text(
            json.dumps({**found, "limits": busy, "break_even": shortest}, indent=2) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
