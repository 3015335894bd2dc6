"""Attacks on files: reading, writing, and links and mounts that lead to them."""

from __future__ import annotations

from escapes.attack import attacks

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


attacks(READING, _ABSENT)(
    read_a_file="print(open('@WORLD@/public').read())",
    read_over_parents="print(open('../' * 40 + '@WORLD@/public'.lstrip('/')).read())",
    read_from_a_descriptor_of_the_root="""
        import os
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        for part in "@WORLD@".strip("/").split("/"):
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        print(os.read(os.open("public", os.O_RDONLY, dir_fd=folder), 100))
    """,
    read_by_a_child="""
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "print(open('@WORLD@/public').read())"])
    """,
    read_by_openat2="""
        import ctypes, os
        libc = ctypes.CDLL(None)
        how = (ctypes.c_uint64 * 3)(0, 0, 0)
        handle = libc.syscall(437, -100, b"@WORLD@/public", ctypes.byref(how), 24)
        print(os.read(handle, 100))
    """,
    list_a_folder="""
        import os
        if "private" in os.listdir("@WORLD@"):
            print("@WON@")
    """,
    import_a_module="""
        import sys
        sys.path.append("@WORLD@")
        import module_outside
        print(module_outside.secret)
    """,
    map_a_file="""
        import mmap
        with open("@WORLD@/public", "rb") as file:
            print(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:])
    """,
)
attacks(READING, _ABSENT + "; another user")(read_a_private_file="print(open('@WORLD@/private').read())")
attacks(READING, "mount namespace: the path isn't there; seccomp: getxattr, listxattr")(
    read_an_attribute="import os; print(os.getxattr('@WORLD@/for_all', 'user.secret'))",
    list_attributes="""
        import os
        if "user.secret" in os.listxattr("@WORLD@/for_all"):
            print("@WON@")
    """,
)
attacks(READING, "mount namespace: a passwd file of its own")(
    read_the_users="""
        if "root:" in open("/etc/passwd").read():
            print("@WON@")
    """
)
attacks(WRITING, _ABSENT)(
    make_a_file="open('@WORLD@/made', 'w').write('x')",
    overwrite_a_file="open('@WORLD@/canary', 'w').write('overwritten')",
    append_to_a_file="""
        import os
        os.write(os.open("@WORLD@/canary", os.O_WRONLY | os.O_APPEND), b"more")
    """,
    truncate_a_file="import os; os.truncate('@WORLD@/canary', 0)",
    delete_a_file="import os; os.remove('@WORLD@/canary')",
    rename_a_file="import os; os.rename('@WORLD@/canary', '@WORLD@/renamed')",
)
attacks(WRITING, _ABSENT + "; with Landlock alone seccomp or another user")(
    change_a_mode="import os; os.chmod('@WORLD@/canary', 0o777)",
    change_a_time="import os; os.utime('@WORLD@/canary', (1, 1))",
)
attacks(WRITING, "mount namespace: the path isn't there; seccomp: utimensat of a path")(
    touch_a_file="import os; os.utime('@WORLD@/for_all')",
    touch_a_file_by_an_empty_path="""
        import ctypes, os
        handle = os.open("@WORLD@/for_all", os.O_PATH)
        ctypes.CDLL(None).utimensat(handle, b"", None, 0x1000)
    """,
)
attacks(WRITING, "read-only mount; Landlock")(
    write_where_reading_is_allowed="open('@WORLD@/readable/canary', 'w').write('overwritten')"
)
attacks(
    WRITING,
    "read-only mount; Landlock",
    follow_up="""
        import sys
        sys.path.append("@WORLD@/readable")
        import @PLANTED@
        print("@WON@")
    """,
)(plant_where_the_next_call_reads="open('@WORLD@/readable/@PLANTED@.py', 'w').write('x = 1')")
attacks(
    WRITING,
    "scratch folder of the call's own",
    follow_up="""
        import sys
        sys.path.append("/tmp")
        import @PLANTED@
        print("@WON@")
    """,
)(plant_for_the_next_call="open('/tmp/@PLANTED@.py', 'w').write('x = 1')")
attacks(
    WRITING,
    "scratch folder of the call's own",
    follow_up="""
        import os
        if os.path.exists("/dev/shm/@PLANTED@"):
            print("@WON@")
    """,
)(leave_shared_memory_for_the_next_call="open('/dev/shm/@PLANTED@', 'w').write('x')")
attacks(MOUNTS, _ABSENT)(
    symlink_to_a_file="""
        import os
        os.symlink("@WORLD@/public", "link")
        print(open("link").read())
    """,
    symlink_over_parents="""
        import os
        os.makedirs("a/b")
        os.symlink("../" * 30 + "@WORLD@".lstrip("/"), "a/b/link")
        print(open("a/b/link/public").read())
    """,
    hard_link_to_a_file="""
        import os
        os.link("@WORLD@/public", "link")
        print(open("link").read())
    """,
    swap_a_link_under_a_reader="""
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
    """,
)
attacks(MOUNTS, "no /proc; Landlock")(
    follow_the_root_of_a_process="print(open('/proc/@VICTIM@/root@WORLD@/public').read())",
    follow_the_folder_of_a_process="""
        import os
        os.chdir("/proc/@OUTSIDE@/cwd")
        if os.listdir("."):
            print("@WON@")
    """,
)
attacks(MOUNTS, "seccomp: unshare and mount")(
    mount_in_a_namespace_of_its_own=_in_new_namespaces('libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0'),
    bind_a_folder=_in_new_namespaces('libc.mount(b"/", b"/tmp", None, 4096 | 16384, None) == 0'),
    make_the_interpreter_writable=_in_new_namespaces(
        'libc.mount(b"/usr", b"/usr", None, 4096 | 16384, None) == 0 '
        'and libc.mount(None, b"/usr", None, 4096 | 32, None) == 0'
    ),
)
attacks(MOUNTS, "seccomp: unshare and chroot")(
    leave_a_changed_root="""
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
)
attacks(MOUNTS, "seccomp: umount")(
    uncover_what_is_below=_in_new_namespaces(
        'libc.mount(b"tmpfs", b"/usr", b"tmpfs", 0, None) == 0 and libc.umount2(b"/usr", 2) == 0'
    )
)
attacks(MOUNTS, "seccomp: open_tree")(
    clone_a_mount=_in_new_namespaces('libc.syscall(428, -100, b"/", 1 | 0x8000) >= 0')
)
