"""Attacks on files: reading, writing, and links and mounts that lead to them."""

from __future__ import annotations

from escapes.attack import attack

READING, WRITING, MOUNTS = "reading files", "writing files", "symlinks and mounts"
_ABSENT = "mount namespace: the path isn't there; Landlock"


def _in_new_namespaces(test: str) -> str:
    """Where the process may, it gets a user and a mount namespace first; its own, so that nothing outside changes."""
    return f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x10000000 | 0x20000) == 0 and libc.mount(None, b"/", None, 16384 | 1 << 18, None) == 0:
            if {test}:
                print("@WON@")
        print(os.strerror(ctypes.get_errno()))
    """


@attack(READING, _ABSENT)
def read_a_file() -> str:
    return "print(open('@WORLD@/public').read())"


@attack(READING, _ABSENT + "; another user")
def read_a_private_file() -> str:
    return "print(open('@WORLD@/private').read())"


@attack(READING, _ABSENT)
def read_over_parents() -> str:
    return "print(open('../' * 40 + '@WORLD@/public'.lstrip('/')).read())"


@attack(READING, _ABSENT)
def read_from_a_descriptor_of_the_root() -> str:
    return """
        import os
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        for part in "@WORLD@".strip("/").split("/"):
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        print(os.read(os.open("public", os.O_RDONLY, dir_fd=folder), 100))
    """


@attack(READING, _ABSENT)
def read_by_a_child() -> str:
    return """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "print(open('@WORLD@/public').read())"])
    """


@attack(READING, _ABSENT)
def read_by_openat2() -> str:
    return """
        import ctypes, os
        libc = ctypes.CDLL(None)
        how = (ctypes.c_uint64 * 3)(0, 0, 0)
        handle = libc.syscall(437, -100, b"@WORLD@/public", ctypes.byref(how), 24)
        print(os.read(handle, 100))
    """


@attack(READING, _ABSENT)
def list_a_folder() -> str:
    return """
        import os
        if "private" in os.listdir("@WORLD@"):
            print("@WON@")
    """


@attack(READING, _ABSENT)
def import_a_module() -> str:
    return """
        import sys
        sys.path.append("@WORLD@")
        import module_outside
        print(module_outside.secret)
    """


@attack(READING, "mount namespace: a passwd file of its own")
def read_the_users() -> str:
    return """
        if "root:" in open("/etc/passwd").read():
            print("@WON@")
    """


@attack(READING, _ABSENT)
def map_a_file() -> str:
    return """
        import mmap
        with open("@WORLD@/public", "rb") as file:
            print(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:])
    """


@attack(WRITING, _ABSENT)
def make_a_file() -> str:
    return "open('@WORLD@/made', 'w').write('x')"


@attack(WRITING, _ABSENT)
def overwrite_a_file() -> str:
    return "open('@WORLD@/canary', 'w').write('overwritten')"


@attack(WRITING, _ABSENT)
def append_to_a_file() -> str:
    return """
        import os
        os.write(os.open("@WORLD@/canary", os.O_WRONLY | os.O_APPEND), b"more")
    """


@attack(WRITING, _ABSENT)
def truncate_a_file() -> str:
    return "import os; os.truncate('@WORLD@/canary', 0)"


@attack(WRITING, _ABSENT)
def delete_a_file() -> str:
    return "import os; os.remove('@WORLD@/canary')"


@attack(WRITING, _ABSENT)
def rename_a_file() -> str:
    return "import os; os.rename('@WORLD@/canary', '@WORLD@/renamed')"


@attack(WRITING, _ABSENT + "; with Landlock alone seccomp or another user")
def change_a_mode() -> str:
    return "import os; os.chmod('@WORLD@/canary', 0o777)"


@attack(WRITING, _ABSENT + "; with Landlock alone seccomp or another user")
def change_a_time() -> str:
    return "import os; os.utime('@WORLD@/canary', (1, 1))"


@attack(WRITING, "read-only mount; Landlock")
def write_where_reading_is_allowed() -> str:
    return "open('@WORLD@/readable/canary', 'w').write('overwritten')"


@attack(
    WRITING,
    "read-only mount; Landlock",
    follow_up="""
        import sys
        sys.path.append("@WORLD@/readable")
        import @PLANTED@
        print("@WON@")
    """,
)
def plant_where_the_next_call_reads() -> str:
    return "open('@WORLD@/readable/@PLANTED@.py', 'w').write('x = 1')"


@attack(
    WRITING,
    "scratch folder of the call's own",
    follow_up="""
        import sys
        sys.path.append("/tmp")
        import @PLANTED@
        print("@WON@")
    """,
)
def plant_for_the_next_call() -> str:
    return "open('/tmp/@PLANTED@.py', 'w').write('x = 1')"


@attack(
    WRITING,
    "scratch folder of the call's own",
    follow_up="""
        import os
        if os.path.exists("/dev/shm/@PLANTED@"):
            print("@WON@")
    """,
)
def leave_shared_memory_for_the_next_call() -> str:
    return "open('/dev/shm/@PLANTED@', 'w').write('x')"


@attack(MOUNTS, _ABSENT)
def symlink_to_a_file() -> str:
    return """
        import os
        os.symlink("@WORLD@/public", "link")
        print(open("link").read())
    """


@attack(MOUNTS, _ABSENT)
def symlink_over_parents() -> str:
    return """
        import os
        os.makedirs("a/b")
        os.symlink("../" * 30 + "@WORLD@".lstrip("/"), "a/b/link")
        print(open("a/b/link/public").read())
    """


@attack(MOUNTS, _ABSENT)
def hard_link_to_a_file() -> str:
    return """
        import os
        os.link("@WORLD@/public", "link")
        print(open("link").read())
    """


@attack(MOUNTS, _ABSENT)
def swap_a_link_under_a_reader() -> str:
    return """
        import os, threading
        open("innocent", "w").write("innocent")
        os.symlink("innocent", "link")

        def swap():
            for number in range(300):
                target = "@WORLD@/public" if number % 2 else "innocent"
                os.symlink(target, "new")
                os.replace("new", "link")

        thread = threading.Thread(target=swap)
        thread.start()
        seen = set()
        while thread.is_alive() or not seen:
            try:
                seen.add(open("link").read())
            except OSError:
                pass
        seen.add(open("link").read())
        print(seen)
    """


@attack(MOUNTS, "no /proc; Landlock")
def follow_the_root_of_a_process() -> str:
    return "print(open('/proc/@VICTIM@/root@WORLD@/public').read())"


@attack(MOUNTS, "no /proc; Landlock")
def follow_the_folder_of_a_process() -> str:
    return """
        import os
        os.chdir("/proc/@OUTSIDE@/cwd")
        if os.listdir("."):
            print("@WON@")
    """


@attack(MOUNTS, "seccomp: unshare and mount")
def mount_in_a_namespace_of_its_own() -> str:
    return _in_new_namespaces('libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0')


@attack(MOUNTS, "seccomp: unshare and mount")
def bind_a_folder() -> str:
    return _in_new_namespaces('libc.mount(b"/", b"/tmp", None, 4096 | 16384, None) == 0')


@attack(MOUNTS, "seccomp: unshare and mount")
def make_the_interpreter_writable() -> str:
    return _in_new_namespaces(
        'libc.mount(b"/usr", b"/usr", None, 4096 | 16384, None) == 0 '
        'and libc.mount(None, b"/usr", None, 4096 | 32, None) == 0'
    )


@attack(MOUNTS, "seccomp: unshare and chroot")
def leave_a_changed_root() -> str:
    return """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.unshare(0x10000000)
        os.mkdir("hole")
        if libc.chroot(b"hole") == 0:
            for _ in range(40):
                os.chdir("..")
            libc.chroot(b".")
            print(open("@WORLD@/public").read())
    """


@attack(MOUNTS, "seccomp: umount")
def uncover_what_is_below() -> str:
    return _in_new_namespaces('libc.mount(b"tmpfs", b"/usr", b"tmpfs", 0, None) == 0 and libc.umount2(b"/usr", 2) == 0')


@attack(MOUNTS, "seccomp: open_tree")
def clone_a_mount() -> str:
    return _in_new_namespaces('libc.syscall(428, -100, b"/", 1 | 0x8000) >= 0')
