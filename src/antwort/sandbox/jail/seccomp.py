"""Seccomp filter: the system calls that CPython, the scientific stack and ordinary programs need, and no others.

An allow-list. Other calls return `ENOSYS`: libraries then fall back as on an older kernel, where `EPERM` would make
them fail. Not allowed, and why:

- `ptrace`, `process_vm_readv`, `process_vm_writev`, `kcmp`, `pidfd_getfd`: access to other processes;
- `mount` and its newer variants, `pivot_root`, `chroot`, `unshare`, `setns`, `clone3` (its flags are behind a pointer,
  which a filter cannot read): change the isolation;
- `bpf`, `perf_event_open`, `io_uring_*`, `userfaultfd`, `keyctl` and related calls, `vmsplice`: where most escapes of
  recent years started, and not needed in a notebook;
- `kexec_load`, modules, `swapon`, `reboot`, clocks, `syslog`, `quotactl`: administration of the machine;
- `inotify_*`: the kernel counts instances per user, so one container could exhaust those of the others;
- `setuid` and related calls: there is one user in a container.

Where no cgroup counts memory, calls that allocate memory of no process are refused, too (`UNCOUNTED_MEMORY_CALLS`).
Without namespaces the network is that of the server, and its processes are visible: then there are no sockets but
pairs, no limits of other processes, and, unless Landlock restricts signals, no signals (`SIGNAL_CALLS`).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct
from typing import Final

from . import privileges, syscalls

ALLOWED: Final[tuple[tuple[str, str], ...]] = (
    (
        "Files: reading, writing, seeking. The mounts and Landlock decide what may be opened.",
        (
            "read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 open openat openat2 creat "
            "close close_range lseek stat fstat lstat newfstatat statx access faccessat faccessat2 readlink "
            "readlinkat getdents getdents64 fcntl flock dup dup2 dup3 fsync fdatasync sync_file_range syncfs "
            "truncate ftruncate fallocate fadvise64 readahead sendfile copy_file_range statfs fstatfs umask"
        ),
    ),
    (
        "Directories: creating, moving, removing; only beneath the container's own tmpfs mounts.",
        (
            "mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat mknod "
            "mknodat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat "
            "futimesat chdir fchdir getcwd getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr "
            "lsetxattr fsetxattr removexattr lremovexattr fremovexattr"
        ),
    ),
    (
        "Memory: the allocator, numpy's arrays, shared memory, just-in-time compilers.",
        (
            "brk munmap mremap mprotect madvise msync mincore mlock munlock mlock2 mlockall munlockall "
            "memfd_create membarrier pkey_alloc pkey_free pkey_mprotect shmget shmat shmdt shmctl semget semop "
            "semtimedop semctl msgget msgsnd msgrcv msgctl cachestat mseal map_shadow_stack"
        ),
    ),
    (
        "Processes and threads: subprocess, multiprocessing, threading. `clone` is allowed below, without namespaces.",
        (
            "fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp getsid "
            "setpgid setsid set_tid_address set_robust_list get_robust_list rseq arch_prctl prctl kill tkill "
            "tgkill pidfd_open pidfd_send_signal sched_yield sched_getaffinity sched_setaffinity sched_getparam "
            "sched_getscheduler sched_get_priority_max sched_get_priority_min sched_getattr sched_rr_get_interval "
            "getpriority setpriority getcpu times getrusage getrlimit setrlimit prlimit64 sysinfo uname "
            "restart_syscall"
        ),
    ),
    (
        "User and group ids: reading only; changing them is not allowed.",
        "getuid geteuid getgid getegid getresuid getresgid getgroups capget",
    ),
    (
        "Signals, timers, clocks, waiting.",
        (
            "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo "
            "rt_tgsigqueueinfo rt_sigsuspend sigaltstack pause alarm getitimer setitimer timer_create "
            "timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime "
            "timerfd_gettime nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time futex "
            "futex_waitv futex_wake futex_wait futex_requeue eventfd eventfd2 signalfd signalfd4 poll ppoll "
            "select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 getrandom"
        ),
    ),
    (
        "Sockets and pipes: `socket` is allowed below for some families; only loopback is there.",
        (
            "pipe pipe2 bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt shutdown "
            "sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg"
        ),
    ),
)
"""Groups of system calls that are allowed whatever their arguments, each with its reason."""

UNCOUNTED_MEMORY_CALLS: Final = frozenset({"memfd_create", "shmget", "semget", "msgget"})
"""Calls that allocate memory that no process's statistics show, so the watchdog could not count it."""

SIGNAL_CALLS: Final = frozenset(
    {"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"}
)
"""Calls that could end the server, which runs as the same user where there are no namespaces."""

_SHARED_AND_ANONYMOUS: Final = 0x21  # MAP_SHARED, MAP_ANONYMOUS: pages that can be unmapped and kept
_NAMESPACE_FLAGS: Final = 0x7E020000  # every CLONE_NEW* flag
_TIOCSTI: Final = 0x5412  # injects input into a terminal
_TIOCLINUX: Final = 0x541C  # the same through the console
_FAMILIES: Final = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: not netlink, packet, vsock, alg and others
_SOCKET_TYPES: Final = (1, 2, 5)  # stream, datagram, seqpacket: no raw sockets
_TYPE_MASK: Final = 0xF
_PROTOCOLS: Final = (0, 6, 17)  # default, TCP, UDP

_AUDIT_ARCH: Final = (0xC000003E, 0xC00000B7)
_X32: Final = 0x40000000

# Classic BPF, see linux/bpf_common.h.
_LOAD: Final = 0x20  # a 32-bit word of struct seccomp_data
_AND: Final = 0x54
_EQUAL: Final = 0x15
_GREATER: Final = 0x25
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_NR, _ARCH = 0, 4
_ALLOW: Final = 0x7FFF0000
_RETURN_ENOSYS: Final = 0x00050000 | errno.ENOSYS
_RETURN_EPERM: Final = 0x00050000 | errno.EPERM
_KILL: Final = 0x80000000

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

Instruction = tuple[int, int, int, int]


def program(
    machine: int, *, has_cgroup: bool, has_namespaces: bool = True, signals_are_scoped: bool = True
) -> list[Instruction]:
    """The filter as instructions: check the machine, then calls with conditions, then the allowed ones.

    `has_cgroup`: a cgroup counts all of the container's memory. `signals_are_scoped`: Landlock restricts them.
    """
    refused = frozenset[str]() if has_cgroup else UNCOUNTED_MEMORY_CALLS
    if not has_namespaces:
        refused |= {"prlimit64"} | (frozenset[str]() if signals_are_scoped else SIGNAL_CALLS)
    return [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),  # another machine's calling convention: its numbers mean other calls
        (_LOAD, 0, 0, _NR),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),  # the x32 convention reaches the same calls under other numbers
        *_conditional("clone", _clone_rules(), machine),
        *_conditional("socket", _socket_rules() if has_namespaces else [(_RETURN, 0, 0, _RETURN_EPERM)], machine),
        *_conditional("socketpair", _socket_rules(), machine),
        *_conditional("ioctl", _ioctl_rules(), machine),
        *_conditional("mmap", [(_RETURN, 0, 0, _ALLOW)] if has_cgroup else _mmap_rules(), machine),
        *([] if has_namespaces else _conditional("prlimit64", _own_process_rules(), machine)),
        *_allow_rules(machine, refused),
        (_RETURN, 0, 0, _RETURN_ENOSYS),
    ]


@functools.cache
def assemble(*, has_cgroup: bool, has_namespaces: bool = True, signals_are_scoped: bool = True) -> bytes:
    """The filter in the kernel's format; cached by the zygote, so that no container spends time on it."""
    steps = program(
        syscalls.machine(),
        has_cgroup=has_cgroup,
        has_namespaces=has_namespaces,
        signals_are_scoped=signals_are_scoped,
    )
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def install(*, has_cgroup: bool, has_namespaces: bool, signals_are_scoped: bool) -> None:
    """Install the filter for this thread and its descendants. Needs no_new_privs."""
    code = assemble(has_cgroup=has_cgroup, has_namespaces=has_namespaces, signals_are_scoped=signals_are_scoped)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
    privileges.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header))


def allowed_numbers(machine: int, without: frozenset[str] = frozenset()) -> list[int]:
    """Numbers of the allowed calls on this machine."""
    names = " ".join(names for _, names in ALLOWED).split()
    return sorted({syscalls.NUMBERS[name][machine] for name in names if name not in without} - {syscalls.ABSENT})


def _allow_rules(machine: int, without: frozenset[str]) -> list[Instruction]:
    """One test per run of consecutive numbers."""
    steps: list[Instruction] = []
    for first, last in _runs(allowed_numbers(machine, without)):
        steps += [(_AT_LEAST, 0, 2, first), (_GREATER, 1, 0, last), (_RETURN, 0, 0, _ALLOW)]
    return steps


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1] = (runs[-1][0], n)
        else:
            runs.append((n, n))
    return runs


def _conditional(name: str, rules: list[Instruction], machine: int) -> list[Instruction]:
    """Run the rules for this call, which all return; jump over them for others."""
    return [(_EQUAL, 0, len(rules), syscalls.NUMBERS[name][machine]), *rules]


def _argument(index: int) -> int:
    """Offset of the low half of an argument; both supported machines are little-endian."""
    return 16 + 8 * index


def _clone_rules() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _argument(0)),
        (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
        (_RETURN, 0, 0, _RETURN_EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _mmap_rules() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _argument(3)),
        (_AND, 0, 0, _SHARED_AND_ANONYMOUS),
        (_EQUAL, 0, 1, _SHARED_AND_ANONYMOUS),
        (_RETURN, 0, 0, _RETURN_EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _own_process_rules() -> list[Instruction]:
    """The first argument is 0, which means the caller."""
    return [
        (_LOAD, 0, 0, _argument(0)),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _RETURN_EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _ioctl_rules() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _argument(1)),
        (_EQUAL, 1, 0, _TIOCSTI),
        (_EQUAL, 0, 1, _TIOCLINUX),
        (_RETURN, 0, 0, _RETURN_EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _socket_rules() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _argument(0)),
        *_one_of(_FAMILIES),
        (_LOAD, 0, 0, _argument(1)),
        (_AND, 0, 0, _TYPE_MASK),
        *_one_of(_SOCKET_TYPES),
        (_LOAD, 0, 0, _argument(2)),
        *_one_of(_PROTOCOLS),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _one_of(values: tuple[int, ...]) -> list[Instruction]:
    """Continue if the loaded word is one of the values, else refuse."""
    steps: list[Instruction] = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*steps, (_RETURN, 0, 0, _RETURN_EPERM)]
