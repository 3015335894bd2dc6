"""The system call filter, run as the kernel would run it."""

from __future__ import annotations

import errno
import signal
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_python.jail.seccomp import ALLOWED, HIGHEST, Rules, program
from toolrl_plugin_python.jail.system import OWN

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = pytest.mark.parametrize("machine", list(ALLOWED))


def decide(machine: str, number: int, *arguments: int, rules: Rules | None = None, architecture: int = 0) -> int | str:
    """What the filter makes of a call: `allow`, `kill`, or the error number."""
    code = program(machine, rules or Rules())
    padded = [value & (1 << 64) - 1 for value in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *padded)
    place, accumulator = 0, 0
    for _ in range(len(code)):
        kind, if_true, if_false, value = code[place]
        place += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x06:
            if value == ALLOW:
                return "allow"
            return "kill" if value == KILL else value & 0xFFFF
        else:
            test = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
            test[0x45] = bool(accumulator & value)
            place += if_true if test[kind] else if_false
    raise AssertionError("the program has no end")


CONDITIONAL = ("clone", "clone3", "ioctl", "fcntl", "prctl", "personality", "prlimit64", "sched_setaffinity",
               "setpriority", "getpriority", "socketpair", "mmap", "madvise", "getsockopt")  # fmt: skip


@MACHINES
def test_what_is_in_the_table_is_allowed_and_nothing_else(machine: str) -> None:
    numbers = ALLOWED[machine]
    plain = {number for name, number in numbers.items() if name not in CONDITIONAL}
    for number in range(HIGHEST + 30):
        if number in plain:
            assert decide(machine, number) == "allow", number
        elif number not in numbers.values():
            assert decide(machine, number) == (errno.ENOSYS if number > HIGHEST else errno.EPERM), number


@MACHINES
def test_what_builds_the_walls_is_refused_inside(machine: str) -> None:
    for number in OWN[machine].values():
        assert decide(machine, number) == errno.EPERM


@MACHINES
def test_programs_are_valid(machine: str) -> None:
    for rules in (Rules(), Rules(processes=False, signals=False, metadata=False, paths=False, timers=False)):
        code = program(machine, rules)
        assert len(code) < 4096
        for place, (kind, if_true, if_false, _) in enumerate(code):
            assert 0 <= if_true <= 255
            assert 0 <= if_false <= 255
            assert place + 1 + max(if_true, if_false) < len(code) or kind == 0x06


@MACHINES
def test_times_and_attributes_by_a_path_are_refused_where_files_of_others_are_in_sight(machine: str) -> None:
    numbers, rules = ALLOWED[machine], Rules(paths=False)
    here, pointer = -100, 1 << 40
    assert decide(machine, numbers["utimensat"], here, pointer, 0, 0, rules=rules) == errno.EPERM
    assert decide(machine, numbers["utimensat"], 3, 0, 0, 0, rules=rules) == "allow"
    assert decide(machine, numbers["getxattr"], pointer, pointer, rules=rules) == errno.EOPNOTSUPP
    assert decide(machine, numbers["fgetxattr"], 3, pointer, rules=rules) == "allow"


@MACHINES
def test_other_architectures_end_the_process(machine: str) -> None:
    number = ALLOWED[machine]["read"]
    assert decide(machine, number, architecture=0x40000003) == "kill"
    if machine == "x86_64":
        assert decide(machine, number | 0x40000000) == "kill"


_NEVER = """socket connect bind ptrace process_vm_readv mount unshare setns bpf keyctl io_uring_setup memfd_create
    shmget userfaultfd perf_event_open setuid"""
NAMESPACE_FLAGS = [1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30)]


@MACHINES
@given(flags=st.integers(0, 2**64 - 1))
def test_clone_makes_no_namespace(machine: str, flags: int) -> None:
    number = ALLOWED[machine]["clone"]
    for given_flags in (flags, flags & ~0xFF, flags & ~0xFF | 17):
        refused = any(given_flags & flag for flag in NAMESPACE_FLAGS) or given_flags & 0xFF not in (0, 17)
        refused = refused or given_flags & 0x10400 == 0x10000  # a thread with descriptors of its own
        assert decide(machine, number, given_flags) == (errno.EPERM if refused else "allow")
        thread = given_flags & 0x10000
        single = decide(machine, number, given_flags, rules=Rules(processes=False))
        assert single == ("allow" if thread and not refused else errno.EPERM)


@MACHINES
@given(family=st.integers(0, 50), kind=st.integers(0, 10), flags=st.sampled_from([0, 0o4000, 0o2000000]))
def test_only_connected_pairs_of_sockets(machine: str, family: int, kind: int, flags: int) -> None:
    decision = decide(machine, ALLOWED[machine]["socketpair"], family, kind | flags)
    assert decision == ("allow" if family == 1 and kind in (1, 5) else errno.EPERM)


@MACHINES
@pytest.mark.parametrize(
    ("name", "arguments", "decision"),
    [
        ("prlimit64", (0,), "allow"),
        ("prlimit64", (1234,), errno.EPERM),
        ("prlimit64", (0, 4, 0, 1), "allow"),
        ("prlimit64", (0, 4, 0x7F0000000000, 0), 0),
        ("prlimit64", (0, 4, 0x1000, 0), 0),
        ("prlimit64", (0, 7, 0x7F0000001000, 0), "allow"),
        ("prlimit64", (1, 4, 0, 0), errno.EPERM),
        ("setrlimit", (4,), 0),
        ("setrlimit", (7,), "allow"),
        ("mmap", (0, 4096, 3, 0x22), "allow"),
        ("mmap", (0, 4096, 3, 0x01), "allow"),
        ("mmap", (0, 4096, 3, 0x12), "allow"),
        ("mmap", (0, 4096, 3, 0x21), errno.EPERM),
        ("mmap", (0, 4096, 3, 0x23), errno.EPERM),
        ("mmap", (0, 4096, 1, 0x4021), errno.EPERM),
        ("madvise", (0, 4096, 4), "allow"),
        ("madvise", (0, 4096, 20), errno.EINVAL),
        ("madvise", (0, 4096, 21), errno.EINVAL),
        ("getsockopt", (3, 1, 3), "allow"),
        ("getsockopt", (3, 1, 77), errno.ENOPROTOOPT),
        ("timer_create", (), "allow"),
        ("sched_setaffinity", (0,), "allow"),
        ("sched_setaffinity", (1,), errno.EPERM),
        ("setpriority", (0, 0), "allow"),
        ("setpriority", (0, 7), errno.EPERM),
        ("setpriority", (2, 0), errno.EPERM),
        ("getpriority", (0, 0), "allow"),
        ("fcntl", (3, 3), "allow"),
        ("fcntl", (3, 8), errno.EPERM),
        ("fcntl", (3, 10), errno.EPERM),
        ("fcntl", (3, 1024), errno.EPERM),
        ("ioctl", (0, 0x5401), "allow"),
        ("ioctl", (0, 0x5412), errno.ENOTTY),
        ("ioctl", (0, 0xFFFFFFFF00005412), errno.ENOTTY),
        ("prctl", (15,), "allow"),
        ("prctl", (1,), errno.EPERM),
        ("prctl", (22,), errno.EPERM),
        ("personality", (0xFFFFFFFF,), "allow"),
        ("personality", (0x40000,), errno.EPERM),
        ("clone3", (), errno.ENOSYS),
    ],
)
def test_arguments(machine: str, name: str, arguments: tuple[int, ...], decision: int | str) -> None:
    assert decide(machine, ALLOWED[machine][name], *arguments) == decision


@MACHINES
def test_stricter_rules(machine: str) -> None:
    numbers = ALLOWED[machine]
    strict = Rules(processes=False, signals=False, metadata=False)
    for name in ("fork", "vfork", "kill", "tkill", "tgkill", "chmod", "fchmodat", "fchownat", "utimensat"):
        if name in numbers:
            assert decide(machine, numbers[name], rules=strict) == errno.EPERM, name
            assert decide(machine, numbers[name]) == "allow", name
    stopped = Rules(processes=False, timers=False)
    assert decide(machine, numbers["timer_create"], rules=stopped) == errno.ENOSYS
    for name, before in (("kill", (1,)), ("tkill", (1,)), ("tgkill", (1, 1))):
        assert decide(machine, numbers[name], *before, signal.SIGCONT, rules=stopped) == errno.EPERM, name
        assert decide(machine, numbers[name], *before, signal.SIGUSR1, rules=stopped) == "allow", name


@MACHINES
def test_tables_hold_each_number_once(machine: str) -> None:
    numbers = [*ALLOWED[machine].values(), *OWN[machine].values()]
    assert len(numbers) == len(set(numbers))
    for name in _NEVER.split():
        assert name not in ALLOWED[machine]
