"""Attacks by system calls that no Python module offers, and by machine code."""

from __future__ import annotations

from escapes.attack import attacks

RAW = "ctypes and raw calls"


def _call(name: str, x86_64: int, aarch64: int, *arguments: str) -> str:
    """Wins where the kernel lets a call through."""
    return f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        number = {{"x86_64": {x86_64}, "aarch64": {aarch64}}}[os.uname().machine]
        if libc.syscall(number, {", ".join(arguments)}) >= 0:
            print("@WON@ {name}")
        else:
            print("{name}:", os.strerror(ctypes.get_errno()))
    """


attacks(RAW, "seccomp: unshare")(make_a_user_namespace=_call("unshare", 272, 97, "0x10000000"))
attacks(RAW, "seccomp: flags of clone")(
    clone_into_a_user_namespace="""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        child = libc.syscall(number, 0x10000000 | 17, 0, 0, 0, 0)
        if child == 0:
            libc._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            print("@WON@")
    """
)
attacks(RAW, "seccomp: clone3")(
    clone3_into_a_user_namespace="""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        wanted = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
        child = libc.syscall(435, ctypes.byref(wanted), 64)
        if child == 0:
            libc._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            print("@WON@")
    """
)
attacks(RAW, "seccomp: setns; no /proc")(
    enter_the_namespaces_of_a_process="""
        import ctypes, os, time
        libc = ctypes.CDLL(None, use_errno=True)
        child = os.fork()
        if child == 0:
            libc.unshare(0x10000000)
            time.sleep(1)
            os._exit(0)
        time.sleep(0.2)
        try:
            if libc.setns(os.open(f"/proc/{child}/ns/user", os.O_RDONLY), 0) == 0:
                print("@WON@")
        finally:
            os.kill(child, 9)
    """
)
attacks(RAW, "seccomp: io_uring_setup")(
    set_up_a_ring=_call("io_uring_setup", 425, 425, "4", "ctypes.create_string_buffer(256)")
)
attacks(RAW, "seccomp: userfaultfd")(handle_page_faults=_call("userfaultfd", 323, 282, "1"))
attacks(RAW, "seccomp: add_key")(add_a_key=_call("add_key", 248, 217, 'b"user"', 'b"@MARK@"', 'b"x"', "1", "-3"))
attacks(RAW, "seccomp: memfd_create")(
    run_a_program_from_memory="""
        import os, sys
        handle = os.memfd_create("program")
        os.write(handle, open(sys.executable, "rb").read())
        if os.fork() == 0:
            os.execve(handle, ["python", "-S", "-c", "print('@WON@')"], dict(os.environ))
        os.wait()
    """
)
attacks(RAW, "seccomp: shmat; IPC namespace")(
    attach_a_shared_segment="""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        address = libc.shmat(@SEGMENT@, None, 0o10000)
        if address != ctypes.c_void_p(-1).value:
            print(ctypes.string_at(address, @SECRET_SIZE@).decode())
    """
)
attacks(RAW, "seccomp: inotify_init1; mount namespace")(
    watch_a_folder="""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        handle = libc.inotify_init1(0)
        if handle >= 0 and libc.inotify_add_watch(handle, b"@WORLD@", 2) >= 0:
            print("@WON@")
    """
)
attacks(RAW, "seccomp: another architecture ends the process")(
    call_as_a_32_bit_program="""
        import ctypes, mmap, os
        if os.uname().machine != "x86_64":
            raise SystemExit
        # push rbx; mov eax, 122 (uname); mov ebx, edi; int 0x80; pop rbx; ret
        machine_code = bytes.fromhex("53b87a00000089fbcd805bc3")
        block = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
        block.write(machine_code)
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(block)))
        # EFAULT, -14, comes from a call that was let through.
        if function(0) == -14:
            print("@WON@")
    """
)
attacks(RAW, "seccomp: personality")(turn_off_address_randomization=_call("personality", 135, 92, "0x0040000"))
attacks(RAW, "seccomp: mq_open; IPC namespace")(
    make_a_message_queue="""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        open_number, unlink_number = {"x86_64": (240, 241), "aarch64": (180, 181)}[os.uname().machine]
        if libc.syscall(open_number, b"@MARK@", 0o102, 0o600, None) >= 0:
            libc.syscall(unlink_number, b"@MARK@")
            print("@WON@")
    """
)
attacks(RAW, "seccomp: kcmp; process namespace")(
    compare_with_a_process=_call("kcmp", 312, 272, "os.getpid()", "@VICTIM@", "2", "0", "0")
)
attacks(RAW, "seccomp: pidfd_open; process namespace")(open_a_process=_call("pidfd_open", 434, 434, "@VICTIM@", "0"))
attacks(RAW, "seccomp: keyctl")(ask_for_a_keyring=_call("keyctl", 250, 219, "0", "-4", "1"))
attacks(RAW, "seccomp: seccomp")(
    answer_its_own_system_calls="""
        import ctypes, os, struct
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(38, 1, 0, 0, 0)
        allow_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
        filter_ = struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow_all))
        number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
        if libc.syscall(number, 1, 8, filter_) >= 0:
            print("@WON@")
    """
)
