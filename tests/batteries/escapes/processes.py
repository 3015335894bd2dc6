"""Attacks on other processes, by signals and by looking into them, and processes that outlive their call."""

from __future__ import annotations

from escapes.attack import attacks

SIGNALS, PROC, OUTLIVING = "processes and signals", "ptrace and /proc", "outliving the call"
_NOT_THERE = "process namespace: its number stands for no one; with Landlock alone Landlock, seccomp or another user"
_OWN_NUMBER = "seccomp: only the caller itself; process namespace"
_ENDS = "process namespace: it ends with its first process; with Landlock alone a user of its own or no new processes"
_NO_PROC = "no /proc; Landlock"


def _lingering(code: str) -> str:
    """A process that goes by the mark's name; without isolation it ends by itself after twenty seconds."""
    return (
        """
        import ctypes, os, time
        libc = ctypes.CDLL(None)

        def name():
            libc.prctl(15, b"@MARK@")

        def linger():
            name()
            for number in range(3):
                os.close(number)
            time.sleep(20)
            os._exit(0)
        """
        + code.rstrip()
        + """
        time.sleep(0.1)
        """
    )


attacks(SIGNALS, _NOT_THERE)(
    terminate_a_process="import os; os.kill(@VICTIM@, 15)",
    stop_a_process="""
        import os, time
        os.kill(@VICTIM@, 19)
        time.sleep(0.05)
    """,
    kill_a_group="import os; os.killpg(@VICTIM@, 9)",
)
attacks(SIGNALS, "seccomp: pidfd_open; process namespace")(
    kill_by_descriptor="""
        import os, signal
        signal.pidfd_send_signal(os.pidfd_open(@VICTIM@), 9)
    """
)
attacks(SIGNALS, "seccomp: rt_sigqueueinfo; process namespace")(
    queue_a_signal="""
        import ctypes, os, struct
        info = ctypes.create_string_buffer(struct.pack("iii", 9, 0, -1), 128)
        number = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
        ctypes.CDLL(None).syscall(number, @VICTIM@, 9, info)
    """
)
attacks(SIGNALS, "seccomp: fcntl F_SETOWN; process namespace")(
    have_the_kernel_signal="""
        import fcntl, os, socket
        ours, theirs = socket.socketpair()
        fcntl.fcntl(ours, fcntl.F_SETOWN, @VICTIM@)
        fcntl.fcntl(ours, 10, 9)
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
        theirs.send(b"x")
    """
)
attacks(SIGNALS, _OWN_NUMBER)(
    change_a_priority="import os; os.setpriority(os.PRIO_PROCESS, @VICTIM@, 15)",
    change_limits_of_a_process="import resource; resource.prlimit(@VICTIM@, resource.RLIMIT_NOFILE, (5, 5))",
    bind_a_process_to_a_processor="""
        import os
        allowed = os.sched_getaffinity(0)
        assert len(allowed) > 1
        os.sched_setaffinity(@VICTIM@, {min(allowed)})
    """,
)
attacks(SIGNALS, "rlimit NPROC, counted in the user namespace")(
    start_too_many_processes="""
        import os, time
        children = []
        try:
            for _ in range(100):
                child = os.fork()
                if child == 0:
                    time.sleep(30)
                    os._exit(0)
                children.append(child)
            print("@WON@")
        finally:
            for child in children:
                os.kill(child, 9)
    """,
    start_processes_that_start_others="""
        import os, time
        read, write = os.pipe()
        original, until = os.getpid(), time.monotonic() + 3
        # Two to the power of seven.
        for _ in range(7):
            while True:
                try:
                    os.fork()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
        os.write(write, b"x")
        os.close(write)
        seen = b""
        while os.getpid() == original and len(seen) < 128:
            seen += os.read(read, 200)
            if len(seen) == 128:
                print("@WON@")
        time.sleep(1)
        os._exit(0)
    """,
)
attacks(SIGNALS, "rlimit NPROC")(
    start_too_many_threads="""
        import threading
        stop = threading.Event()
        threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(150)]
        try:
            for thread in threads:
                thread.start()
            print("@WON@")
        finally:
            stop.set()
    """
)
attacks(PROC, "seccomp: ptrace; process namespace")(
    attach_to_a_process="""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(0x4206, @VICTIM@, 0, 0) == 0:
            print("@WON@")
    """
)
attacks(PROC, "seccomp: process_vm_readv; process namespace")(
    read_the_memory_of_a_process="""
        import ctypes

        class Piece(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

        found = ctypes.create_string_buffer(100)
        here = Piece(ctypes.addressof(found), @SECRET_SIZE@)
        there = Piece(@ADDRESS@, @SECRET_SIZE@)
        ctypes.CDLL(None).process_vm_readv(@VICTIM@, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        print(found.value.decode())
    """
)
attacks(PROC, _NO_PROC)(
    read_a_memory_file="""
        with open("/proc/@VICTIM@/mem", "rb", 0) as memory:
            memory.seek(@ADDRESS@)
            print(memory.read(@SECRET_SIZE@).decode())
    """,
    read_the_environment_of_a_process="print(open('/proc/@VICTIM@/environ').read())",
    read_environments_of_all_parents="""
        import os, re
        pid = os.getpid()
        while pid:
            try:
                text = open(f"/proc/{pid}/environ").read()
                if "TOOLRL_ESCAPE=" in text:
                    print("@WON@")
                status = open(f"/proc/{pid}/status").read()
            except PermissionError:
                status = open(f"/proc/{pid}/status").read()
            pid = int(re.search(r"PPid:\\t(\\d+)", status)[1])
    """,
    open_a_descriptor_of_the_run="print(open('/proc/@OUTSIDE@/fd/@DESCRIPTOR@').read())",
    list_processes="""
        import os
        for name in os.listdir("/proc"):
            if name.isdigit() and "victim-of-attacks" in open(f"/proc/{name}/cmdline").read():
                print("@WON@")
                break
    """,
    offer_a_process_to_the_killer="open('/proc/@VICTIM@/oom_score_adj', 'w').write('900')",
)
attacks(PROC, "seccomp: pidfd_open and pidfd_getfd; process namespace")(
    take_a_descriptor_of_the_run="""
        import ctypes, os
        handle = os.pidfd_open(@OUTSIDE@)
        taken = ctypes.CDLL(None).syscall(438, handle, @DESCRIPTOR@, 0)
        print(os.pread(taken, 100, 0).decode())
    """
)
attacks(PROC, "seccomp: getsockopt SO_PEERPIDFD")(
    take_a_handle_of_the_run="""
        import ctypes
        # Descriptor 3 leads to the run: which process is at its other end?
        handle, size = ctypes.c_int(-1), ctypes.c_uint(4)
        if ctypes.CDLL(None).getsockopt(3, 1, 77, ctypes.byref(handle), ctypes.byref(size)) == 0:
            print("@WON@")
    """
)
attacks(OUTLIVING, _ENDS, lingers=True)(
    fork_twice=_lingering("""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                linger()
            os._exit(0)
    """),
    start_a_session=_lingering("""
        import subprocess, sys
        code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'@MARK@'); time.sleep(20)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=-3, stderr=-3)
        time.sleep(0.5)
    """),
    ignore_signals=_lingering("""
        import signal
        if os.fork() == 0:
            os.setsid()
            for number in (1, 2, 3, 13, 14, 15):
                signal.signal(number, signal.SIG_IGN)
            linger()
    """),
    stop_itself=_lingering("""
        if os.fork() == 0:
            os.setsid()
            name()
            os.kill(os.getpid(), 19)
    """),
    hop_from_process_to_process=_lingering("""
        if os.fork() == 0:
            os.setsid()
            name()
            until = time.monotonic() + 10
            while time.monotonic() < until:
                if os.fork():
                    os._exit(0)
                time.sleep(0.02)
            os._exit(0)
    """),
    become_its_own_reaper=_lingering("""
        if os.fork() == 0:
            os.setsid()
            libc.prctl(36, 1)
            if os.fork() == 0:
                linger()
            linger()
    """),
    start_at_exit=_lingering("""
        import atexit

        def last():
            if os.fork() == 0:
                os.setsid()
                linger()
            time.sleep(0.1)

        atexit.register(last)
    """),
    end_the_first_thread=_lingering("""
        import threading
        if os.fork() == 0:
            os.setsid()
            name()
            threading.Thread(target=linger).start()
            libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    """),
)
attacks(OUTLIVING, _ENDS + "; seccomp: prctl", lingers=True)(
    forget_the_parents_death=_lingering("""
        if os.fork() == 0:
            os.setsid()
            libc.prctl(1, 0)
            linger()
    """)
)
attacks(
    OUTLIVING,
    "seccomp: timer_create",
    follow_up="""
        now = time.monotonic()
        if any(now - 0.8 < tick < now - 0.4 for tick in ticks):
            print("@WON@")
    """,
    persistent=True,
)(
    wake_up_by_a_timer="""
        import ctypes, os, signal, struct, threading, time
        libc = ctypes.CDLL(None, use_errno=True)
        create, settime = {"x86_64": (222, 223), "aarch64": (107, 110)}[os.uname().machine]
        timer = ctypes.c_int()
        # SIGCONT each tenth of a second: what stops an interpreter between its calls is over then.
        event = ctypes.create_string_buffer(struct.pack("qii", 0, signal.SIGCONT, 0), 64)
        assert libc.syscall(create, 1, event, ctypes.byref(timer)) == 0
        assert libc.syscall(settime, timer, 0, struct.pack("4q", 0, 10**8, 0, 10**8), None) == 0
        signal.signal(signal.SIGCONT, lambda *arguments: None)
        ticks = []

        def go_on():
            while True:
                time.sleep(0.02)
                ticks.append(time.monotonic())

        threading.Thread(target=go_on, daemon=True).start()
    """
)
