"""Attempts to get out, really made from inside."""

from __future__ import annotations

import pytest

from antwort.sandbox.jail import syscalls

CALL = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef call(n, *a):\n    r = libc.syscall(n, *a)\n    return r, ctypes.get_errno()\n"


@pytest.mark.parametrize(
    "name",
    "ptrace process_vm_readv process_vm_writev mount umount2 pivot_root chroot unshare setns clone3 io_uring_setup bpf "
    "perf_event_open keyctl add_key request_key userfaultfd kexec_load init_module finit_module swapon reboot "
    "open_tree move_mount fsopen pidfd_getfd kcmp memfd_secret open_by_handle_at personality syslog seccomp".split(),
)
def test_dangerous_system_calls_do_not_exist(arena, name):
    assert arena.value(f"{CALL}call({syscalls.number(name)}, 0, 0, 0, 0, 0)") == "(-1, 38)"


@pytest.mark.parametrize("flag", [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000])
def test_no_nested_namespaces_by_clone(arena, flag):
    assert arena.value(f"{CALL}call({syscalls.number('clone')}, {flag} | 17, 0, 0, 0, 0)") == "(-1, 1)"


def test_no_other_calling_convention(arena):
    seen = arena.run(f"{CALL}call(0x40000000 + 39)")
    assert seen["status"] == "ended"


def test_no_capabilities_and_no_new_privileges(arena):
    seen = arena.run("for l in open('/proc/self/status'):\n    if l.startswith(('Cap', 'NoNew', 'Seccomp:')): print(*l.split())")
    lines = dict(line.split(": ") for line in seen["stdout"].splitlines())
    assert {lines[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")


def test_setuid_programs_gain_nothing(arena):
    code = "import subprocess, glob, os, stat\nfound = [p for p in glob.glob('/usr/bin/*') if os.path.isfile(p) and os.stat(p).st_mode & stat.S_ISUID]\nmount = [l for l in found if not os.statvfs(l).f_flag & os.ST_NOSUID]\nmount"  # fmt: skip
    assert arena.value(code) == "[]"


def test_only_its_own_processes_are_seen(arena):
    assert arena.value("import os; sorted(n for n in os.listdir('/proc') if n.isdigit())") == "['1', '2']"


@pytest.mark.parametrize("file", ["/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/self/environ", "/proc/self/mem", "/proc/self/mountinfo", "/proc/mounts", "/proc/self/cgroup", "/proc/self/task/2/mountinfo", "/proc/keys", "/proc/cmdline", "/proc/kallsyms", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/kcore", "/opt/antwort/jail/cell.py"])  # fmt: skip
def test_what_proc_would_tell_is_refused(arena, file):
    assert arena.value(f"try: open({file!r}, 'rb').read(1); r = 'read'\nexcept OSError as e: r = e.errno\nr") in {"13", "2", "1"}


def test_init_cannot_be_killed_or_traced_from_inside(arena):
    arena.run("import os, signal\nfor s in (9, 15, 19, 11):\n    try: os.kill(1, s)\n    except OSError: pass")
    assert arena.value("1 + 1") == "2"


def test_processes_outside_cannot_be_signalled(arena):
    code = "import os\nhit = []\nfor pid in range(3, 3000):\n    try: os.kill(pid, 0); hit.append(pid)\n    except ProcessLookupError: pass\n    except PermissionError: hit.append(pid)\nhit"  # fmt: skip
    assert arena.value(code) == "[]"


def test_cgroup_release_agent_core_pattern_and_sys(arena):
    assert arena.value("import os; os.path.exists('/sys'), os.path.exists('/sys/fs/cgroup')") == "(False, False)"
    code = "r = []\nfor p in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/user/max_user_namespaces'):\n    try: open(p, 'w').write('x'); r.append(p)\n    except OSError: pass\nr"  # fmt: skip
    assert arena.value(code) == "[]"


def test_no_device_can_be_made_or_opened(arena):
    code = "import os, stat\nr = []\ntry: os.mknod('/tmp/d', stat.S_IFBLK | 0o666, os.makedev(254, 0)); r.append('made')\nexcept OSError: pass\nfor n in os.listdir('/dev'):\n    p = '/dev/' + n\n    if not os.path.islink(p) and not os.path.isdir(p) and n not in ('null', 'zero', 'full', 'random', 'urandom', 'tty', 'console'): r.append(n)\nr"  # fmt: skip
    assert arena.value(code) == "[]"


def test_abstract_sockets_of_others_are_not_there(arena):
    other = "import socket\ns = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen()"
    arena.client.run(arena.sibling, other)
    code = "import socket\nc = socket.socket(socket.AF_UNIX)\ntry: c.connect('\\0meet'); r = 'met'\nexcept OSError as e: r = e.errno\nr"
    assert arena.value(code) in {"111", "1"}


def test_system_v_memory_is_not_shared_with_siblings(arena):
    n = syscalls.number("shmget")
    assert int(arena.client.run(arena.sibling, f"{CALL}call({n}, 4711, 4096, 0o1666)[0]")["result"]) >= 0
    assert arena.value(f"{CALL}call({n}, 4711, 4096, 0)") == "(-1, 2)"


def test_the_servers_environment_and_secrets_are_nowhere(arena):
    code = "import os\nfound = []\nfor d, _, files in os.walk('/proc'):\n    for f in files:\n        if f in ('environ', 'cmdline', 'auxv', 'status', 'maps'):\n            try: data = open(os.path.join(d, f), 'rb').read()\n            except OSError: continue\n            if b'4711' in data or b'antwort' in data and f == 'environ': found.append(os.path.join(d, f))\nfound, 'SECRET_OF_THE_SERVER' in os.environ"  # fmt: skip
    assert arena.value(code) == "([], False)"


def test_no_path_of_the_host_is_visible(arena):
    code = "import sys, os\nmods = [getattr(m, '__file__', None) or '' for m in list(sys.modules.values())]\nsorted({'/'.join(p.split('/')[:3]) for p in [*sys.path, *mods, sys.executable, sys.prefix] if p.startswith('/')} - {'/opt/python', '/opt/stack'})"  # fmt: skip
    assert all(path.startswith("'/usr") for path in arena.value(code).strip("[]").split(", ") if path)


def test_only_its_own_descriptors_are_open(arena):
    code = "import os\n{n: os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')}"
    assert arena.value(code) == "{'0': '/dev/null', '1': 'pipe', '2': 'pipe', '4000': 'socket'}"


def test_randomness_is_fresh_in_every_container(arena):
    code = "import random, numpy, uuid, tempfile\nrandom.random(), numpy.random.rand(), uuid.uuid4().hex, next(tempfile._get_candidate_names())"
    assert not set(arena.value(code).strip("()").split(", ")) & set(arena.client.run(arena.sibling, code)["result"].strip("()").split(", "))


def test_terminal_injection_is_refused(arena):
    code = "import fcntl, os, pty\nm, s = pty.openpty()\ntry: fcntl.ioctl(s, 0x5412, b'x'); r = 'pushed'\nexcept OSError as e: r = e.errno\nr"
    assert arena.value(code) == "1"
