"""Attacks that hide what they use: memory that the kernel keeps for a process, files that no path leads to, processes
that left their parents.

The battery allows 128 MB of memory, one second of processor time and 16 MB of files.
"""

from __future__ import annotations

from functools import partial

from escapes.attack import MMAP, inside
from escapes.attack import attacks as any_attacks

attacks = partial(any_attacks, hides=True)
MEMORY, DISK, OUTLIVING = "memory and CPU", "descriptors and disk", "outliving the call"
_GROUP = "control group; without one the keeper: "
_DISK = "size of the scratch folder's file system; without one the keeper: "

_FULL_SOCKETS = """
pairs = [socket.socketpair() for _ in range(100)]
for end in (end for pair in pairs for end in pair):
    end.setblocking(False)
    try:
        while True:
            end.send(bytes(1 << 16))
    except BlockingIOError:
        pass
"""


def _in_children(count: int, work: str, *, leave: bool = False) -> str:
    """Processes of which each says so when its work is done, and waits until all have; `leave` forks them twice."""
    return f"""
        import ctypes, mmap, os, resource, select, signal, socket, struct, time
        {MMAP}
        done, say = os.pipe()
        hold, go = os.pipe()
        for _ in range({count}):
            if os.fork() == 0:
                if {leave} and os.fork():
                    os._exit(0)
                os.close(go)
                {inside(work, 16)}
                os.write(say, b"x")
                select.select([hold], [], [])
                os._exit(0)
        seen = b""
        while len(seen) < {count}:
            seen += os.read(done, {count})
        time.sleep(1)
        print("@WON@")
    """


attacks(MEMORY, _GROUP + "VmPTE of each process", long=True)(
    fill_page_tables=f"""
        import ctypes, time
        {MMAP}
        # Of each gigabyte one page, which is the kernel's page of zeros: all that is used are tables.
        for number in range(24_000):
            place = libc.mmap((number + 1024) << 30, 4096, 1, 0x100022, -1, 0)
            assert place != ctypes.c_void_p(-1).value
            ctypes.string_at(place, 1)
        time.sleep(1.5)
        print("@WON@")
    """,
    fill_page_tables_by_children=_in_children(
        8,
        """
        for number in range(3000):
            ctypes.string_at(libc.mmap((number + 1024) << 30, 4096, 1, 0x100022, -1, 0), 1)
        """,
    ),
)
attacks(MEMORY, _GROUP + "the mappings of each process", long=True)(
    fill_memory_with_mappings=f"""
        import ctypes, os, select, time
        {MMAP}
        size = 60_000
        place = libc.mmap(None, size * 4096, 0, 0x4022, -1, 0)
        for number in range(0, size, 2):
            assert libc.mprotect(place + number * 4096, 4096, 1) == 0
        hold, go = os.pipe()
        for _ in range(14):
            if os.fork() == 0:
                os.close(go)
                select.select([hold], [], [])
                os._exit(0)
        time.sleep(1.5)
        print("@WON@")
    """
)
attacks(MEMORY, _GROUP + "the sockets of each process", long=True)(fill_socket_buffers=_in_children(8, _FULL_SOCKETS))
attacks(MEMORY, "seccomp: sendmsg", long=True)(
    fill_sockets_that_no_process_has="""
        import array, socket, time
        near, far = socket.socketpair()
        for _ in range(40):
            ends = [end for _ in range(10) for end in socket.socketpair()]
            for end in ends:
                end.setblocking(False)
                try:
                    while True:
                        end.send(bytes(1 << 16))
                except BlockingIOError:
                    pass
            numbers = array.array("i", [end.fileno() for end in ends])
            near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
            for end in ends:
                end.close()
        time.sleep(1)
        print("@WON@")
    """
)
attacks(MEMORY, "seccomp: close_range", long=True)(
    fill_sockets_that_one_thread_has=f"""
        import ctypes, socket, threading, time
        libc = ctypes.CDLL(None, use_errno=True)
        full = threading.Semaphore(0)

        def fill():
            # From now on its descriptors are its own.
            assert libc.syscall(436, 1000, 2000, 2) == 0
            {inside(_FULL_SOCKETS, 12)}
            full.release()
            time.sleep(60)

        for _ in range(6):
            threading.Thread(target=fill, daemon=True).start()
        if all(full.acquire(timeout=2) for _ in range(6)):
            time.sleep(1)
            print("@WON@")
    """
)
attacks(MEMORY, _GROUP + "the pages of FIFOs, whatever their names", long=True)(
    fill_fifos=_in_children(
        16,
        """
        handles, block = [], bytearray(3 << 20)
        for number in range(180):
            name = f"fifo-{os.getpid()}-{number}"
            os.mkfifo(name)
            handles.append(os.open(name, os.O_RDWR | os.O_NONBLOCK))
            os.unlink(name)
            try:
                for _ in range(16):
                    os.write(handles[-1], bytes(4096))
            except BlockingIOError:  # An ordinary user's get less when there are many.
                pass
        """,
    )
)
attacks(MEMORY, "the keeper: locks of every descriptor", long=True)(
    lock_ranges_of_pipes="""
        import fcntl, os, time
        _, pipe = os.pipe()
        for number in range(8_000):
            fcntl.lockf(pipe, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * number)
        time.sleep(1)
        print("@WON@")
    """
)
attacks(MEMORY, _GROUP + "memory of all processes, of which the job's first adopts orphans", long=True)(
    fill_memory_by_grandchildren=_in_children(4, "block = bytearray(60 << 20)", leave=True)
)
attacks(MEMORY, _GROUP + "time of all processes, of which the job's first adopts orphans", long=True)(
    burn_time_by_grandchildren=_in_children(
        6,
        """
        while time.process_time() < 0.4:
            pass
        """,
        leave=True,
    )
)
attacks(MEMORY, _GROUP + "a process that can't be read counts as the worst", long=True)(
    fill_sockets_behind_an_unreadable_program=f"""
        import os, shutil, subprocess, sys
        # A process whose program it can't read can't be inspected.
        shutil.copy(os.path.realpath(sys.executable), "program")
        os.chmod("program", 0o111)
        code = '''if True:
            import socket, time
            {inside(_FULL_SOCKETS, 12)}
            print("full", flush=True)
            time.sleep(2)
        '''
        environment = {{"PYTHONHOME": sys.base_prefix}}
        running = [
            subprocess.Popen(["./program", "-c", code], stdout=subprocess.PIPE, env=environment) for _ in range(6)
        ]
        if all(one.stdout.readline() == b"full\\n" and one.wait() == 0 for one in running):
            print("@WON@")
    """
)
attacks(DISK, _DISK + "descriptors of each process")(
    hide_files_without_a_name="""
        import os, time
        handles = []
        for number in range(10):
            handles.append(os.open("file", os.O_RDWR | os.O_CREAT))
            os.unlink("file")
            os.write(handles[-1], bytes(4 << 20))
        time.sleep(0.7)
        print("@WON@")
    """
)
attacks(DISK, _DISK + "mappings of each process")(
    hide_files_in_mappings=f"""
        import ctypes, os, time
        {MMAP}
        for number in range(10):
            handle = os.open("file", os.O_RDWR | os.O_CREAT)
            os.write(handle, bytes(4 << 20))
            assert libc.mmap(None, 4096, 1, 1, handle, 0) != ctypes.c_void_p(-1).value
            os.close(handle)
            os.unlink("file")
        time.sleep(0.7)
        print("@WON@")
    """
)
attacks(DISK, _DISK + "folders are opened below one another")(
    hide_files_below_long_paths="""
        import os, time
        for _ in range(30):
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        for number in range(10):
            open(f"file{number}", "wb").write(bytes(4 << 20))
        time.sleep(0.7)
        print("@WON@")
    """
)
attacks(DISK, "number of files of the scratch folder's file system; without one the keeper: each costs 4 KB")(
    hide_very_many_files_below_long_paths="""
        import os, time
        for _ in range(30):
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        for number in range(12_000):
            os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
        time.sleep(0.7)
        print("@WON@")
    """
)
attacks(DISK, _DISK + "it lets itself in")(
    hide_files_in_closed_folders="""
        import os, time
        os.mkdir("closed", 0o300)
        os.mkdir("closed/below", 0o300)
        for number in range(10):
            open(f"closed/below/file{number}", "wb").write(bytes(4 << 20))
        time.sleep(0.7)
        print("@WON@")
    """
)
attacks(DISK, _DISK + "what moves is stopped first", long=True)(
    hide_files_in_folders_that_move="""
        import os, threading, time
        for name in ("one", "two", "one/moving"):
            os.mkdir(name)

        def move():
            while True:
                os.rename("one/moving", "two/moving")
                os.rename("two/moving", "one/moving")

        handle = os.open("one/moving", os.O_RDONLY)
        threading.Thread(target=move, daemon=True).start()
        for number in range(10):
            file = os.open(f"file{number}", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
            os.write(file, bytes(4 << 20))
        time.sleep(1.5)
        print("@WON@")
    """
)
attacks(
    OUTLIVING,
    "seccomp: a persistent interpreter can't fork",
    follow_up="""
        os.kill(child, signal.SIGCONT)
        until = time.monotonic() + 0.7
        while time.monotonic() < until and not os.path.exists("revived"):
            time.sleep(0.02)
        if os.path.exists("revived"):
            print("@WON@")
    """,
    persistent=True,
)(
    stay_stopped_until_the_next_call="""
        import os, signal, time
        read, write = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                os.write(write, str(os.getpid()).encode())
                os.kill(os.getpid(), signal.SIGSTOP)
                open("revived", "w").close()
            os._exit(0)
        os.wait()
        child = int(os.read(read, 20))
        time.sleep(0.1)
    """
)
