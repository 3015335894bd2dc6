"""System call numbers: name, number on x86_64, number on aarch64 (`-` where it has none).

The filter allows these and no others. What is left out on purpose, besides all that needs a privilege: sockets other
than pairs, ptrace and reading other processes' memory, memory that belongs to no process (memfd, System V and POSIX
queues), keys, io_uring, userfaultfd, bpf, perf, inotify and fanotify (their limits are the whole user's), extended
attributes, sending of messages that may carry descriptors (nothing counts them there), new namespaces and mounts,
priorities of others, `sync`, splice and vmsplice.
"""

from __future__ import annotations

_ALLOWED = """
    read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62,
    pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286,
    pwritev2 328 287, access 21 -, pipe 22 -, select 23 -, dup 32 23, dup2 33 -, dup3 292 24, pipe2 293 59,
    sendfile 40 71, copy_file_range 326 285, fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46,
    getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38,
    renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37, unlink 87 -,
    unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78, openat 257 56,
    openat2 437 437, newfstatat 262 79, statx 332 291, faccessat 269 48, faccessat2 439 439, umask 95 166,
    statfs 137 43, fstatfs 138 44, fallocate 285 47, fadvise64 221 223, flock 73 32, fcntl 72 25, ioctl 16 29,
    getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
    utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, chmod 90 -, fchmod 91 52, fchmodat 268 53,
    fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, mknod 133 -, mknodat 259 33,
    mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, mremap 25 216, madvise 28 233, msync 26 227,
    mincore 27 232, mlock 149 228, munlock 150 229, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288,
    membarrier 324 283, clone 56 220, clone3 435 435, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281,
    exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, getpid 39 172, gettid 186 178, getppid 110 173,
    getpgid 121 155, getpgrp 111 -, setpgid 109 154, setsid 112 157, getsid 124 156, getuid 102 174,
    geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
    capget 125 90, uname 63 160, sysinfo 99 179, getrusage 98 165, times 100 153, getrlimit 97 163,
    setrlimit 160 164, prlimit64 302 261, prctl 157 167, arch_prctl 158 -, set_tid_address 218 96,
    set_robust_list 273 99, rseq 334 293, futex 202 98, futex_waitv 449 449, sched_yield 24 124,
    sched_getaffinity 204 123, sched_setaffinity 203 122, sched_getparam 143 121, sched_getscheduler 145 120,
    sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
    getpriority 140 141, setpriority 141 140, restart_syscall 219 128, getcpu 309 168, personality 135 92,
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
    rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, kill 62 129, tkill 200 130,
    tgkill 234 131, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102, timer_create 222 107,
    timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, signalfd 282 -,
    signalfd4 289 74, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
    gettimeofday 96 169, time 201 -, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,
    eventfd 284 -, eventfd2 290 19, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
    epoll_pwait 281 22, epoll_pwait2 441 441, ppoll 271 73, pselect6 270 72, socketpair 53 199, sendto 44 206,
    recvfrom 45 207, recvmsg 47 212, recvmmsg 299 243, shutdown 48 210,
    getsockname 51 204, getpeername 52 205, getsockopt 55 209, getrandom 318 278, close_range 436 436
"""

_OWN = """
    pivot_root 155 41, seccomp 317 277, capset 126 91, mount_setattr 442 442, landlock_create_ruleset 444 444,
    landlock_add_rule 445 445, landlock_restrict_self 446 446
"""
"""What the walls themselves are built with; not allowed inside."""

HIGHEST = 452
"""The highest number that was looked at. Newer calls answer ENOSYS, as on an older kernel, so that a library goes
another way; older ones that aren't allowed answer EPERM."""


def _table(text: str, column: int) -> dict[str, int]:
    rows = (entry.split() for entry in text.replace("\n", " ").split(",") if entry.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


ALLOWED: dict[str, dict[str, int]] = {"x86_64": _table(_ALLOWED, 1), "aarch64": _table(_ALLOWED, 2)}
"""Machine, as `os.uname` calls it, to name to number."""
OWN: dict[str, dict[str, int]] = {"x86_64": _table(_OWN, 1), "aarch64": _table(_OWN, 2)}
