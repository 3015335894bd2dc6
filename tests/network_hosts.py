"""Trains over three hosts made of network namespaces, and cuts one of them off for a while.

    sudo python tests/network_hosts.py [--cut 40] [--steps 400] [--trainers 0] [--staleness 1] [--dir runs/hosts]
                                       [--json OUT.json]

By hand, since it needs root, `ip` of iproute2 and `nsenter`, `unshare` of util-linux. Each host has an address, a name
and a /tmp/ray of its own; a fourth namespace holds the bridge between them, so nothing of this machine's own network is
touched. The first host runs Ray's head and `toolrl train`, the other two a rollout worker each; with `--trainers 2` the
first and one of the others a trainer worker, too. In the middle the link of one of them goes down, of that with a
trainer where there is one, and up again after `--cut` seconds. Its node, which the cluster has given up by then, ends,
and is started again, as whoever watches over a host would do.

Exit status 1 where no step was trained while the host was away, the run doesn't end well, or an episode is missing or
stands there twice. In the end the namespaces and all processes in them are gone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from kill_victims import QUIET, WORKERS, Run
from worker_kill_battery import look, prepare

HOSTS = 3
NETWORK = "10.177.0"
PORT = 6399
WATCH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray gives a silent node up after some 10 seconds and not after a minute."""
STEPS_BEFORE = 20
"""Trained before the cut."""


class Network:
    """Hosts and the bridge between them; entered, they are there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"toolrl-{os.getpid()}"
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Network:
        with ExitStack() as stack:
            stack.callback(self._end_processes)
            for space in ("bridge", *range(HOSTS)):
                ip("netns", "add", f"{self._name}-{space}")
                stack.callback(ip, "netns", "del", f"{self._name}-{space}")
                ip("-n", f"{self._name}-{space}", "link", "set", "lo", "up")
            ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._bridge, "link", "set", "bridge", "up")
            for host in range(HOSTS):
                self._connect(host)
            stack.callback(self._end_processes)  # Before the namespaces go.
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def _bridge(self) -> str:
        return f"{self._name}-bridge"

    def address(self, host: int) -> str:
        """Of a host."""
        return f"{NETWORK}.{host + 1}"

    def start(self, host: int, command: list[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
        """A command on a host."""
        home = self._folder / f"host-{host}"
        home.mkdir(exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        steps = (
            f"mount --bind {shlex.quote(str(home))} /tmp/ray",
            f"hostname {self._name}-{host}",
            f"exec {shlex.join(command)}",
        )
        enter = ["nsenter", f"--net=/run/netns/{self._name}-{host}", "unshare", "--mount", "--uts", "--"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*enter, "sh", "-c", " && ".join(steps)],
                stdout=output, stderr=output, env={**os.environ, **QUIET, **WATCH, "OMP_NUM_THREADS": "1", **variables},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def link(self, host: int, state: str) -> None:
        """`up` or `down`, at the bridge: the host itself notices nothing but silence."""
        ip("-n", self._bridge, "link", "set", f"port{host}", state)

    def pids(self, host: int) -> list[int]:
        """All processes on a host."""
        return [int(word) for word in ip("netns", "pids", f"{self._name}-{host}").split()]

    def _connect(self, host: int) -> None:
        space = f"{self._name}-{host}"
        ip("-n", self._bridge, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", self._bridge, "link", "set", f"port{host}", "master", "bridge", "up")
        ip("-n", space, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        # Ray asks the kernel by which address it would reach the world.
        ip("-n", space, "route", "add", "default", "dev", "eth0")

    def _end_processes(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for host in range(HOSTS):
                with suppress(subprocess.CalledProcessError):  # It is gone.
                    for pid in self.pids(host):
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
            time.sleep(1.0)
        for process in self.processes:
            process.wait()


def ip(*arguments: str) -> str:
    """`ip` of iproute2; what it printed."""
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


class Hosts:
    """The config that a run over the hosts has."""

    def __init__(self, address: str, trainers: int) -> None:
        self._cluster = {"address": address, "worker_cpus": 1}
        if trainers:
            self._cluster |= {"trainer_workers": trainers, "trainer_cpus": 1}

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [tool], "cluster": self._cluster, "trainer": {"save_every": 5}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut", type=float, default=40.0, help="seconds that a host is away")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--trainers", type=int, default=0, choices=(0, 2), help="trainer workers")
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=Path("runs/hosts"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if os.geteuid():
        parser.error("it makes network namespaces, which needs root")
    folder = args.dir.resolve()
    with Network(folder) as network:
        facts = train(network, folder, args)
    print(json.dumps(facts, indent=2))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if facts["problems"] else 0


def train(network: Network, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Start a cluster, train over it, cut a host off and bring it back."""
    prepare(Hosts(f"{network.address(0)}:{PORT}", args.trainers), folder, args.steps, args.staleness)
    nodes = [start_node(network, host, folder, min(args.trainers, 1)) for host in range(HOSTS)]
    wait_for(lambda: alive(network, folder) == HOSTS, 120, "the nodes of the cluster")
    begin = time.monotonic()
    command = [sys.executable, "-m", "toolrl", "train", str(folder / "config.yaml")]
    process = network.start(0, command, folder / "run.log")
    run = Run(process.pid, folder / "run")
    problems: list[str] = []
    wait_for(lambda: len(done(run)) >= STEPS_BEFORE or process.poll() is not None, 300, "the first steps")
    placed = {str(it.get("node")) for it in run.workers().values()}
    if len(placed) < WORKERS:
        problems.append(f"the rollout workers were all on {placed}")
    away = HOSTS - 1
    if args.trainers:
        away = int(run.trainers()[args.trainers - 1]["node"].rpartition("-")[2])
    down = time.time()
    network.link(away, "down")
    elsewhere = watch(run, process, away, down + args.cut)
    up = time.time()
    network.link(away, "up")
    if process.poll() is not None:
        problems.append("the run was over before the host came back")
    back = bring_back(network, nodes, away, folder)
    status = process.wait()
    if status:
        problems.append(f"the run ended with status {status}")
    found = look(folder / "run", args.staleness, args.steps, problems)
    meanwhile = [at for at in done(run) if down < at < up]
    if not meanwhile:
        problems.append("no step was trained while the host was away")
    if back is None:
        problems.append("the host that was away didn't come back to the cluster")
    return {
        "seconds_away": round(up - down, 1),
        "steps_meanwhile": len(meanwhile),
        "longest_pause_of_training": round(longest_pause(done(run), down, up), 1),
        "seconds_until_all_work_elsewhere": round(elsewhere - down, 1) if elsewhere is not None else None,
        "seconds_until_the_host_was_back": round(back, 1) if back is not None else None,
        "seconds": round(time.monotonic() - begin),
        **found,
        "problems": problems,
    }


def watch(run: Run, process: subprocess.Popen[bytes], away: int, end: float) -> float | None:
    """Until `end`; when all workers were ready on other hosts, None where they never were."""
    found = None
    while time.time() < end and process.poll() is None:
        workers = [*run.workers().values(), *run.trainers().values()]
        ready = [it for it in workers if it.get("state") in ("ready", "running") and "node" in it]
        there = [it for it in ready if str(it["node"]).endswith(f"-{away}")]
        if found is None and len(ready) == len(workers) >= WORKERS and not there:
            found = time.time()
        time.sleep(0.2)
    return found


def start_node(network: Network, host: int, folder: Path, trainers: int) -> subprocess.Popen[bytes]:
    """A host's part of the Ray cluster. The head has room for a trainer, the others for all that is on one of them."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
               f"--node-ip-address={network.address(host)}", "--object-store-memory=200000000"]  # fmt: skip
    if host:
        command += [f"--address={network.address(0)}:{PORT}", "--num-cpus=3"]
    else:
        command += ["--head", f"--port={PORT}", f"--num-cpus={trainers}", "--include-dashboard=false"]
    return network.start(host, command, folder / f"node-{host}.log")


def bring_back(network: Network, nodes: list[Any], host: int, folder: Path) -> float | None:
    """Wait for the node that was given up to end, and start another; seconds until the cluster has it."""
    begin = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        nodes[host].wait(timeout=60)
    for pid in network.pids(host):  # What a node that ended has left.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    nodes[host] = start_node(network, host, folder, 0)
    try:
        wait_for(lambda: alive(network, folder) == HOSTS, 60, "the host that was away")
    except TimeoutError:
        return None
    return time.monotonic() - begin


ALIVE = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); "
    "print(sum(it['Alive'] for it in ray.nodes()))"
)


def alive(network: Network, folder: Path) -> int:
    """How many nodes the cluster has."""
    log = folder / "alive.log"
    log.unlink(missing_ok=True)
    ask = network.start(0, [sys.executable, "-c", ALIVE, f"{network.address(0)}:{PORT}"], log)
    with suppress(subprocess.TimeoutExpired):
        ask.wait(timeout=60)
    lines = log.read_text().split()
    return int(lines[-1]) if lines and lines[-1].isdigit() else 0


def done(run: Run) -> list[float]:
    """When each step was complete, in seconds of the machine's clock."""
    try:
        lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):  # One that is being written.
            fact = json.loads(line)
            if fact["kind"] == "train":
                found.append(float(fact["time"]))
    return found


def longest_pause(moments: list[float], begin: float, end: float) -> float:
    """The longest time without a complete step, of those that have a part between `begin` and `end`."""
    return max((after - before for before, after in pairwise(moments) if after > begin and before < end), default=0.0)


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not there after {seconds:g} s")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
