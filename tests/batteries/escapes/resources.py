"""Attacks on memory, processor time, descriptors and disk, and output without end.

The battery allows 128 MB of memory, one second of processor time, 16 MB of files of 8 MB each, and 64 KB of output. A
bomb that goes off where nothing holds it takes a little more than that, and no more.
"""

from __future__ import annotations

from escapes.attack import MMAP, attacks, inside

MEMORY, DISK, OUTPUT = "memory and CPU", "descriptors and disk", "endless output"
_DATA = "rlimit DATA"
_SUM = "the keeper: memory of all processes together"
_TIME = "the call's time"
_KEPT = "the run keeps 64 KB and ends the call after a megabyte more"


def _behind_an_ended_thread(work: str, children: int) -> str:
    """Children whose first thread ends while another one works: in /proc they look as if they were over."""
    return f"""
        import ctypes, os, threading, time
        libc = ctypes.CDLL(None)
        number = {{"x86_64": 60, "aarch64": 93}}[os.uname().machine]
        read, write = os.pipe()

        def work():
            time.sleep(0.1)
            {inside(work, 12)}
            os.write(write, b"x")
            os._exit(0)

        for _ in range({children}):
            if os.fork() == 0:
                threading.Thread(target=work).start()
                libc.syscall(number, 0)
        seen = b""
        while len(seen) < {children}:
            seen += os.read(read, {children})
        print("@WON@")
    """


attacks(MEMORY, _DATA)(
    fill_memory="""
        block = bytearray(200 << 20)
        print("@WON@")
    """,
    fill_memory_with_objects="""
        objects = [b"x" * 100_000 + str(number).encode() for number in range(2000)]
        print("@WON@")
    """,
)
attacks(MEMORY, "seccomp: mmap that is shared and without a file; rlimit AS; " + _SUM, long=True)(
    fill_shared_memory="""
        import mmap, time
        block = mmap.mmap(-1, 200 << 20)
        for place in range(0, len(block), 4096):
            block[place] = 1
        time.sleep(1.5)
        print("@WON@")
    """
)
attacks(MEMORY, "seccomp: mmap that is shared and without a file")(
    fill_shared_memory_and_let_go_of_it=f"""
        import ctypes
        {MMAP}
        # All of it stays for as long as its first page is mapped, and nothing but the page is counted.
        size = 10 << 20
        for _ in range(20):
            place = libc.mmap(None, size, 3, 0x21, -1, 0)
            assert place != ctypes.c_void_p(-1).value
            ctypes.memset(place, 1, size)
            assert libc.munmap(place + 4096, size - 4096) == 0
        print("@WON@")
    """
)
attacks(MEMORY, "Landlock: the device can only be read; without Landlock it isn't there")(
    fill_memory_by_a_device=f"""
        import ctypes, os
        {MMAP}
        handle = os.open("/dev/zero", os.O_RDWR)
        size = 10 << 20
        for _ in range(20):
            place = libc.mmap(None, size, 3, 1, handle, 0)
            assert place != ctypes.c_void_p(-1).value
            ctypes.memset(place, 1, size)
            assert libc.munmap(place + 4096, size - 4096) == 0
        print("@WON@")
    """
)
attacks(MEMORY, _SUM, long=True)(
    fill_memory_and_make_it_read_only=f"""
        import ctypes, time
        {MMAP}
        # RLIMIT_DATA counts what can be written.
        size = 10 << 20
        for _ in range(30):
            place = libc.mmap(None, size, 3, 0x22, -1, 0)
            assert place != ctypes.c_void_p(-1).value
            ctypes.memset(place, 1, size)
            assert libc.mprotect(place, size, 1) == 0
        time.sleep(2)
        print("@WON@")
    """,
    fill_memory_behind_an_ended_thread=_behind_an_ended_thread(
        """
            block = bytearray(60 << 20)
            time.sleep(2)
        """,
        children=4,
    ),
    fill_memory_by_children="""
        import os, time
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                block = bytearray(60 << 20)
                time.sleep(2)
                os._exit(0)
            children.append(child)
        if all(os.waitpid(child, 0)[1] == 0 for child in children):
            print("@WON@")
    """,
)
attacks(MEMORY, "seccomp: memfd_create")(
    fill_memory_that_no_process_has="""
        import os
        handle = os.memfd_create("balloon")
        for _ in range(200):
            os.write(handle, bytes(1 << 20))
        print("@WON@")
    """
)
attacks(MEMORY, "seccomp: shmget")(
    fill_shared_segments="""
        import ctypes, os
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        number = libc.shmget(0, 200 << 20, 0o1600)
        if number >= 0:
            address = libc.shmat(number, None, 0)
            libc.shmctl(number, 0, None)
            ctypes.memset(address, 1, 200 << 20)
            print("@WON@")
    """
)
attacks(MEMORY, "the keeper: processor time of all processes together; rlimit CPU", long=True)(
    burn_time="""
        import time
        while time.process_time() < 2.2:
            pass
        print("@WON@")
    """,
    burn_time_behind_an_ended_thread=_behind_an_ended_thread(
        """
            while time.process_time() < 0.8:
                pass
        """,
        children=3,
    ),
)
attacks(MEMORY, "the keeper: processor time of all processes together", long=True)(
    burn_time_by_children="""
        import os, time
        children = []
        for _ in range(6):
            child = os.fork()
            if child == 0:
                while time.process_time() < 0.4:
                    pass
                os._exit(0)
            children.append(child)
        if all(os.waitpid(child, 0)[1] == 0 for child in children):
            print("@WON@")
    """,
    burn_time_by_forgotten_children="""
        import os, signal, time
        # Children that are not waited for are in no parent's sum.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        read, write = os.pipe()
        for _ in range(6):
            if os.fork() == 0:
                while time.process_time() < 0.4:
                    pass
                os.write(write, b"x")
                os._exit(0)
        seen = b""
        while len(seen) < 6:
            seen += os.read(read, 6)
        print("@WON@")
    """,
)
attacks(MEMORY, _TIME, long=True)(
    sleep_through_the_alarm="""
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        time.sleep(6.5)
        print("@WON@")
    """,
    catch_the_alarm="""
        import time
        until = time.monotonic() + 6.5
        while time.monotonic() < until:
            try:
                time.sleep(0.1)
            except BaseException:
                pass
        print("@WON@")
    """,
)
attacks(DISK, "size of the scratch folder's file system; with Landlock alone the keeper")(
    fill_the_disk="""
        import time
        for number in range(10):
            open(f"file{number}", "wb").write(bytes(4 << 20))
        time.sleep(0.5)
        print("@WON@")
    """,
    fill_the_temporary_folder="""
        import tempfile, time
        with tempfile.TemporaryDirectory() as folder:
            for number in range(10):
                open(f"{folder}/{number}", "wb").write(bytes(4 << 20))
            time.sleep(0.5)
            print("@WON@")
    """,
)
attacks(DISK, "rlimit FSIZE")(
    write_one_large_file="""
        with open("file", "wb") as file:
            file.write(bytes(12 << 20))
        print("@WON@")
    """,
    reserve_a_large_file="""
        import os
        os.posix_fallocate(os.open("file", os.O_CREAT | os.O_RDWR), 0, 40 << 20)
        print("@WON@")
    """,
)
attacks(DISK, "number of files of the scratch folder's file system; with Landlock alone the keeper")(
    make_very_many_files="""
        import os, time
        for number in range(12_000):
            os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
        time.sleep(0.5)
        print("@WON@")
    """
)
attacks(DISK, "size of the scratch folder's file system; Landlock")(
    fill_shared_memory_files="""
        import os, time
        path = "/dev/shm/@PLANTED@"
        try:
            for _ in range(3):
                with open(path, "ab") as file:
                    file.write(bytes(7 << 20))
            print("@WON@")
        finally:
            os.remove(path)
    """
)
attacks(DISK, "rlimit NOFILE")(
    open_very_many_files="""
        import os
        handles = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
        print("@WON@")
    """,
    open_very_many_pipes="""
        import os
        pipes = [os.pipe() for _ in range(300)]
        print("@WON@")
    """,
)
attacks(DISK, "seccomp: setrlimit can't raise what no capability is left for")(
    raise_the_limit_of_files="""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        handles = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
        print("@WON@")
    """
)
attacks(OUTPUT, _KEPT, bound=30_000, output=True, long=True)(
    print_without_end="""
        for _ in range(@BOUND@ or 10**12):
            print("x" * 100)
    """,
    print_errors_without_end="""
        import sys
        for _ in range(@BOUND@ or 10**12):
            print("x" * 100, file=sys.stderr)
    """,
)
attacks(OUTPUT, _KEPT, bound=30, output=True, long=True)(
    write_without_end="""
        import os
        for _ in range(@BOUND@ or 10**12):
            os.write(1, b"x" * 100_000)
    """,
    let_a_child_print_without_end="""
        import subprocess, sys
        code = "import os\\nfor _ in range(@BOUND@ or 10**12): os.write(2, b'x' * 100_000)"
        subprocess.run([sys.executable, "-c", code])
    """,
    print_while_catching_everything="""
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        count = 0
        while count < (@BOUND@ or 10**12):
            try:
                os.write(1, b"x" * 100_000)
                count += 1
            except BaseException:
                pass
    """,
)
attacks(OUTPUT, _KEPT, bound=3_000_000, output=True, long=True)(
    show_a_huge_value="'x' * 3_000_000", raise_a_huge_message="raise ValueError('x' * 3_000_000)"
)
