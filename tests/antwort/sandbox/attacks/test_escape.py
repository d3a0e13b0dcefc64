"""Escape attempts: system calls, namespaces, /proc, other processes, devices, sockets, privileges."""

from __future__ import annotations

import platform
import secrets
import socket

import pytest

from antwort.sandbox.host.process import descendants
from antwort.sandbox.jail import syscalls

CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(n, *a):
    r = libc.syscall(n, *a)
    return r, ctypes.get_errno()

"""

DANGEROUS = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "clone3",
    "io_uring_setup",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "userfaultfd",
    "kexec_load",
    "init_module",
    "finit_module",
    "swapon",
    "reboot",
    "open_tree",
    "move_mount",
    "fsopen",
    "pidfd_getfd",
    "kcmp",
    "memfd_secret",
    "open_by_handle_at",
    "personality",
    "syslog",
    "seccomp",
]

REVEALING_FILES = [
    "/proc/1/environ",
    "/proc/1/mem",
    "/proc/1/maps",
    "/proc/1/root/etc/passwd",
    "/proc/1/cwd/.",
    "/proc/self/environ",
    "/proc/self/mem",
    "/proc/self/mountinfo",
    "/proc/self/mounts",
    "/proc/mounts",
    "/proc/self/cgroup",
    "/proc/self/task/2/mountinfo",
    "/proc/self/task/2/environ",
    "/proc/thread-self/environ",
    "/proc/keys",
    "/proc/cmdline",
    "/proc/kallsyms",
    "/proc/config.gz",
    "/proc/kmsg",
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/proc/self/oom_score_adj",
    "/opt/antwort/jail/child.py",
]


@pytest.mark.parametrize("name", DANGEROUS)
def test_dangerous_system_calls_return_enosys(attacker, name):
    assert attacker.evaluate(f"{CALL}call({syscalls.number(name)}, 0, 0, 0, 0, 0)") == "(-1, 38)"


@pytest.mark.parametrize("flag", [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000])
def test_clone_cannot_create_namespaces(attacker, flag):
    assert attacker.evaluate(f"{CALL}call({syscalls.number('clone')}, {flag} | 17, 0, 0, 0, 0)") == "(-1, 1)"


def test_the_x32_calling_convention_is_fatal(attacker):
    seen = attacker.run(f"{CALL}call(0x40000000 + 39)")
    assert seen["status"] == "ended"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has a 32-bit entry")
def test_no_32_bit_entry(attacker):
    """`getpid` by `int 0x80`: 32-bit numbers mean other calls than the filter's."""
    seen = attacker.run("""
        import ctypes, mmap, os, signal
        page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
        page.write(bytes.fromhex('b814000000' 'cd80' 'c3'))  # mov eax, 20; int 0x80; ret
        enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        child = os.fork()
        if child == 0: os._exit(enter() > 0)
        number = -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(signal.Signals(number).name if number > 0 else f'it returned: {number}')
    """)
    assert seen["stdout"] in {"SIGSYS\n", "SIGSEGV\n"}, seen  # SIGSEGV where the kernel has no such entry


def test_no_capabilities_and_no_new_privileges(attacker):
    seen = attacker.run("""
        for l in open('/proc/self/status'):
            if l.startswith(('Cap', 'NoNew', 'Seccomp:')): print(*l.split())
    """)
    lines = dict(line.split(": ") for line in seen["stdout"].splitlines())
    assert {lines[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")


SETUID = """
import glob, os, stat, subprocess, sys
def identity(path):
    shown = subprocess.run([path, '--version'], env={'LD_SHOW_AUXV': '1'}, capture_output=True, text=True, input='')
    return next((l.split()[1] for l in shown.stdout.splitlines() if l.startswith('AT_EUID:')), 'not shown')
found = [p for p in glob.glob('/usr/bin/*') if os.path.isfile(p) and os.stat(p).st_mode & stat.S_ISUID]
print(len(found), identity(sys.executable), *{identity(path) for path in found} - {str(os.geteuid())})
"""
"""The loader prints the effective uid of a program, except of one that gained privileges."""


def test_setuid_programs_gain_nothing(attacker):
    seen = attacker.run(SETUID, timeout_seconds=30)
    assert seen["status"] == "success", seen
    count, ordinary, *gained = seen["stdout"].split(" ")
    if count == "0" or ordinary.startswith("not"):
        pytest.skip("no setuid program here, or the loader does not show the uid")
    assert gained == [], seen


def test_only_its_own_processes_are_visible(attacker):
    assert attacker.evaluate("import os; sorted(n for n in os.listdir('/proc') if n.isdigit())") == "['1', '2']"


@pytest.mark.parametrize("file", REVEALING_FILES)
def test_revealing_files_in_proc_are_not_readable(attacker, file):
    assert attacker.evaluate(f"""
        try: open({file!r}, 'rb').read(1); r = 'read'
        except OSError as e: r = e.errno
        r
    """) in {"13", "2", "1"}


REACH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
reached = []
for pid in PIDS:
    for name in ('mem', 'environ', 'maps', 'cmdline', 'root/etc/passwd', 'cwd', 'exe', 'fd', 'ns/user', 'status'):
        try: os.close(os.open(f'/proc/{pid}/{name}', os.O_RDONLY)); reached.append((pid, name))
        except OSError: pass
    try: os.close(os.open(f'/proc/{pid}/mem', os.O_RDWR)); reached.append((pid, 'write'))
    except OSError: pass
    for attempt in (lambda: os.kill(pid, 0), lambda: os.pidfd_open(pid), lambda: os.sched_getaffinity(pid),
                    lambda: os.getpgid(pid), lambda: os.getpriority(0, pid)):
        try: attempt(); reached.append((pid, 'call'))
        except (OSError, ProcessLookupError): pass
    if libc.ptrace(16, pid, 0, 0) == 0: reached.append((pid, 'ptrace'))
    word = ctypes.create_string_buffer(8)
    class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
    local, remote = Vector(ctypes.addressof(word), 8), Vector(ctypes.addressof(word), 8)
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        if call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) >= 0: reached.append((pid, call.__name__))
reached
"""


def test_the_server_and_siblings_are_not_reachable_by_pid(attacker):
    """With their pids outside the container."""
    pids = [pid for pid in descendants(attacker.server.process.pid) if pid > 10]
    assert len(pids) >= 4
    assert attacker.evaluate(f"PIDS = {pids}\n{REACH}") == "[]"


PROGRAMS = [
    ["unshare", "--user", "true"],
    ["unshare", "--mount", "true"],
    ["unshare", "--map-root-user", "true"],
    ["nsenter", "--target", "1", "--mount", "true"],
    ["mount", "-t", "tmpfs", "none", "/mnt"],
    ["umount", "/proc"],
    ["chroot", "/", "true"],
    ["mknod", "/mnt/data/d", "b", "254", "0"],
    ["su", "-c", "true"],
    ["setpriv", "--reuid", "0", "true"],
    ["dmesg"],
    ["setarch", "x86_64", "-R", "true"],
]


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_programs_that_attempt_escapes_fail(attacker, program):
    """Or are not installed."""
    code = f"""
        import shutil, subprocess
        program = {program!r}
        found = shutil.which(program[0], path='/usr/bin:/usr/sbin:/bin:/sbin')
        done = subprocess.run([found, *program[1:]], capture_output=True, stdin=subprocess.DEVNULL) if found else None
        done is None or done.returncode != 0
    """
    assert attacker.evaluate(code) == "True"


def test_init_cannot_be_killed_or_traced_from_inside(attacker):
    attacker.run("import os, signal\nfor s in (9, 15, 19, 11):\n    try: os.kill(1, s)\n    except OSError: pass")
    assert attacker.evaluate("1 + 1") == "2"


def test_processes_outside_cannot_be_signalled(attacker):
    code = """
        import os
        hit = []
        for pid in range(3, 3000):
            try: os.kill(pid, 0); hit.append(pid)
            except ProcessLookupError: pass
            except PermissionError: hit.append(pid)
        hit
    """
    assert attacker.evaluate(code) == "[]"


def test_sys_and_kernel_settings_are_not_writable(attacker):
    assert attacker.evaluate("import os; os.path.exists('/sys'), os.path.exists('/sys/fs/cgroup')") == "(False, False)"
    code = """
        r = []
        for p in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/user/max_user_namespaces'):
            try: open(p, 'w').write('x'); r.append(p)
            except OSError: pass
        r
    """
    assert attacker.evaluate(code) == "[]"


def test_no_device_can_be_created_or_opened(attacker):
    code = """
        import os, stat
        r = []
        try: os.mknod('/tmp/d', stat.S_IFBLK | 0o666, os.makedev(254, 0)); r.append('made')
        except OSError: pass
        for n in os.listdir('/dev'):
            p = '/dev/' + n
            harmless = ('null', 'zero', 'full', 'random', 'urandom', 'tty', 'console')
            if not os.path.islink(p) and not os.path.isdir(p) and n not in harmless: r.append(n)
        r
    """
    assert attacker.evaluate(code) == "[]"


def test_abstract_sockets_of_siblings_are_not_reachable(attacker):
    other = "import socket\ns = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen()"
    attacker.run_in_sibling(other)
    code = """
        import socket
        c = socket.socket(socket.AF_UNIX)
        try: c.connect('\\0meet'); r = 'met'
        except OSError as e: r = e.errno
        r
    """
    assert attacker.evaluate(code) in {"111", "1"}


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_abstract_sockets_of_the_host_are_not_reachable(attacker, kind):
    name = f"\0antwort-attacked-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, kind) as listening:
        listening.bind(name)
        if kind != socket.SOCK_DGRAM:
            listening.listen()
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.connect(name)  # reachable from outside
        code = f"""
            import socket
            c = socket.socket(socket.AF_UNIX, {int(kind)})
            try: c.connect({name!r}); r = 'met'
            except OSError as e: r = e.errno
            r
        """
        assert attacker.evaluate(code) in {"111", "1"}


def test_system_v_memory_is_not_shared_with_siblings(attacker):
    n = syscalls.number("shmget")
    made = attacker.run_in_sibling(f"{CALL}call({n}, 4711, 4096, 0o1666)")["result"]
    found = attacker.evaluate(f"{CALL}call({n}, 4711, 4096, 0)")
    assert found == ("(-1, 38)" if made == "(-1, 38)" else "(-1, 2)")


def test_the_servers_environment_and_secrets_are_not_readable(attacker):
    code = """
        import os
        found = []
        for d, _, files in os.walk('/proc'):
            for f in files:
                if f in ('environ', 'cmdline', 'auxv', 'status', 'maps'):
                    try: data = open(os.path.join(d, f), 'rb').read()
                    except OSError: continue
                    if b'4711' in data or b'antwort' in data and f == 'environ': found.append(os.path.join(d, f))
        found, 'SECRET_OF_THE_SERVER' in os.environ
    """
    assert attacker.evaluate(code) == "([], False)"


def test_no_path_of_the_host_is_visible(attacker):
    code = """
        import sys, os
        mods = [getattr(m, '__file__', None) or '' for m in list(sys.modules.values())]
        paths = [p for p in [*sys.path, *mods, sys.executable, sys.prefix] if p.startswith('/')]
        sorted({'/'.join(p.split('/')[:3]) for p in paths} - {'/opt/python', '/opt/stack'})
    """
    assert all(path.startswith("'/usr") for path in attacker.evaluate(code).strip("[]").split(", ") if path)


def test_only_its_own_descriptors_are_open(attacker):
    code = """
        import os
        names = [n for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')]
        {n: os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in names}
    """
    assert attacker.evaluate(code) == "{'0': '/dev/null', '1': 'pipe', '2': 'pipe', '4000': 'socket'}"


def test_random_generators_are_seeded_per_container(attacker):
    code = """
        import random, numpy, uuid, tempfile
        random.random(), numpy.random.rand(), uuid.uuid4().hex, next(tempfile._get_candidate_names())
    """
    assert not set(attacker.evaluate(code).strip("()").split(", ")) & set(
        attacker.run_in_sibling(code)["result"].strip("()").split(", ")
    )


def test_terminal_injection_is_refused(attacker):
    code = """
        import fcntl, os, pty
        m, s = pty.openpty()
        try: fcntl.ioctl(s, 0x5412, b'x'); r = 'pushed'
        except OSError as e: r = e.errno
        r
    """
    assert attacker.evaluate(code) == "1"


def test_shared_packages_and_pages_cannot_be_changed(attacker):
    """Package files are read-only, and pages of the preloaded stack are copied on write."""
    code = """
        import numpy, os
        numpy.pi = 3
        refused = []
        for path in (numpy.__file__, os.__file__, '/usr/bin/env', '/etc/passwd'):
            for attempt in (lambda: open(path, 'a'), lambda: os.unlink(path), lambda: os.chmod(path, 0o777),
                            lambda: os.rename(path, path + 'x'), lambda: os.utime(path)):
                try: attempt(); refused.append(path)
                except OSError: pass
        refused
    """
    assert attacker.evaluate(code) == "[]"
    assert attacker.run_in_sibling("import numpy; numpy.pi > 3.1")["result"] == "True"


def test_parent_directories_of_an_open_directory_stay_inside(attacker):
    code = """
        import os
        fd = os.open('/mnt/data', os.O_RDONLY)
        here = os.stat('/').st_ino, os.stat('/').st_dev
        up = os.stat('../' * 40, dir_fd=fd)
        (up.st_ino, up.st_dev) == here, os.path.exists('/proc/1/root/work')
    """
    assert attacker.evaluate(code) == "(True, False)"


def test_executed_scripts_have_the_same_restrictions(attacker):
    code = """
        import os, subprocess
        open('x', 'w').write('#!/bin/sh\\ngrep -E "^(Seccomp|NoNewPrivs):" /proc/self/status; cat /proc/1/environ')
        os.chmod('x', 0o4755)
        done = subprocess.run(['./x'], capture_output=True, text=True)
        done.stdout, 'denied' in done.stderr
    """
    assert "environ" not in str(attacker.evaluate(code))
    assert attacker.evaluate("done.returncode != 0") == "True"


def test_rlimits_can_only_be_lowered(attacker):
    code = """
        import os, resource
        raised = []
        for which in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_SIGPENDING):
            hard = resource.getrlimit(which)[1]
            try: resource.setrlimit(which, (hard + 1, hard + 1)); raised.append(which)
            except (ValueError, OSError): pass
        try: os.nice(-1); raised.append('nice')
        except OSError: pass
        raised
    """
    assert attacker.evaluate(code) == "[]"
