"""A server for a single use without namespaces, as in a pod with the restricted security context."""

from __future__ import annotations

import ast
import textwrap

import fake_package_index
import pytest
from fixtures_restricted_pod import SECRET, TOKEN, restricted_pod

from antwort.sandbox.jail import landlock

pytestmark = pytest.mark.long


class Inside:
    """Code in the only session of a pod."""

    def __init__(self, pod):
        self.pod = pod
        self.client = pod.client
        self.session = pod.client.session(tenant="first")

    def run(self, code, **more):
        return self.client.run(self.session, textwrap.dedent(code), **more)

    def evaluate(self, code):
        reply = self.run(code)
        assert reply["status"] == "success", reply
        return ast.literal_eval(reply["result"])


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    with restricted_pod(tmp_path_factory.mktemp("pod")) as pod:
        yield Inside(pod)
        assert pod.process.poll() is None  # no attack has ended the server


def attempts(*expressions):
    """Code whose value is the list of those expressions that did not raise `OSError`."""
    tries = [f"lambda: {expression}" for expression in expressions]
    return f"""
import ctypes, os, resource, signal, socket
done = []
for index, attempt in enumerate([{", ".join(tries)}]):
    try: attempt()
    except OSError: continue
    done.append(index)
done
"""


# ── what works ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_layers_that_remain_are_on(inside):
    isolation = inside.client.call("GET", "/health").json["isolation"]
    assert isolation["namespaces"].startswith("no: ")
    assert (isolation["landlock"].startswith("yes"), isolation["seccomp"]) == (True, "yes")
    status = inside.evaluate("dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())")
    assert (status["NoNewPrivs"], status["Seccomp"], status["CapEff"]) == ("1", "2", "0" * 16)
    limits = inside.evaluate(
        "import resource as r\n[r.getrlimit(getattr(r, 'RLIMIT_' + n))[1] for n in ('CORE', 'NOFILE')]"
    )
    assert limits == [0, 1024]


def test_code_files_and_the_scientific_stack(inside):
    assert inside.run("import numpy, pandas; print(int(pandas.Series(numpy.arange(4)).sum()))")["stdout"] == "6\n"
    assert inside.run("open('/mnt/data/a.txt', 'w').write('a'); import os; os.getcwd()")["result"] == "'/mnt/data'"
    client, files = inside.client, f"/sessions/{inside.session}/files"
    assert client.call("GET", f"{files}/a.txt").body == b"a"
    assert client.call("PUT", f"{files}/sub/b.txt", b"b").status in (200, 201)
    assert inside.evaluate("open('/mnt/data/sub/b.txt').read()") == "b"
    figure = inside.run("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert len(figure["images"]) == 1
    assert inside.evaluate("import subprocess; subprocess.check_output(['/bin/echo', 'a'], text=True)") == "a\n"
    assert inside.evaluate("import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')\n1") == 1


def test_without_a_volume_the_files_are_in_a_directory_of_their_own(tmp_path):
    with restricted_pod(tmp_path, has_volume=False, modules="json") as pod:
        inside = Inside(pod)
        assert inside.evaluate("open('a', 'w').write('a'); import os; os.getcwd().startswith('/tmp/antwort-')")
        assert pod.client.call("GET", f"/sessions/{inside.session}/files/a").body == b"a"


@pytest.mark.parametrize("has_landlock", [True, False])
def test_as_process_1_of_a_pod_it_runs_code_and_ends_with_its_parent(tmp_path, has_landlock):
    """Its parent is in another pid namespace, and has the pid 0."""
    with restricted_pod(tmp_path, is_init=True, has_landlock=has_landlock, modules="json") as pod:
        inside = Inside(pod)
        assert inside.evaluate("import subprocess; subprocess.check_output(['/bin/echo', 'a'], text=True)") == "a\n"
        assert inside.run("import time; time.sleep(600)", timeout_seconds=1)["status"] == "timeout"
        assert inside.evaluate("1 + 1") == 2
        assert pod.process.stdin is not None
        pod.process.stdin.close()
        pod.process.wait(30)


def test_a_second_tenant_is_refused(inside):
    assert inside.client.post("/sessions", {"tenant": "second"}).status == 409
    assert inside.client.post("/execute", {"code": "1"}).status == 409


@pytest.fixture
def package_index(tmp_path):
    with fake_package_index.running(tmp_path) as index:
        yield index


def test_wheels_are_installed_and_source_distributions_refused(tmp_path, package_index):
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    folder = package_index.directory / "source-only"
    folder.mkdir()
    (folder / "source_only-1.0.tar.gz").write_bytes(b"")
    (folder / "index.html").write_text('<a href="source_only-1.0.tar.gz">x</a>', encoding="utf-8")
    with restricted_pod(tmp_path, modules="json", python_index=package_index.url) as pod:
        inside = Inside(pod)
        ran = inside.run("import tiny_thing; tiny_thing.ANSWER", requirements=["tiny-thing"], timeout_seconds=60)
        assert ran["result"] == "42", ran
        refused = inside.run("1", requirements=["source-only"], timeout_seconds=60)
        assert (refused["exit_code"], "no usable wheels" in refused["stderr"]) == (-1, True), refused
        assert inside.evaluate(attempts("open(__import__('tiny_thing').__file__, 'w')")) == []


def test_builds_are_refused_at_start(tmp_path):
    with (
        pytest.raises(pytest.fail.Exception, match="SANDBOX_BUILDS needs namespaces"),
        restricted_pod(tmp_path, builds="true"),
    ):
        pass


# ── attacks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_of_the_pod_are_not_readable(inside):
    paths = [
        *("/etc/shadow", "/etc/hostname", "/proc/1/environ", "/proc/1/cmdline", "/proc/1/maps", "/proc/1/fd/0"),
        *("/proc/self/environ", "/proc/self/mountinfo", "/proc/self/mem", "/root/.bashrc", "/tmp/state/packages"),  # noqa: S108 - the pod's
        *(__file__, "/proc/sys/kernel/hostname", "/dev/pts/0", "/var/log/dpkg.log"),
    ]
    assert inside.evaluate(attempts(*(f"os.open({path!r}, os.O_RDONLY)" for path in paths))) == []
    listed = ["/", "/tmp", "/tmp/state", "/proc", "/proc/1", "/etc", "/root", "/dev", "/var", "/mnt"]  # noqa: S108 - the pod's
    assert inside.evaluate(attempts(*(f"os.listdir({path!r})" for path in listed))) == []


def test_nothing_but_its_own_directories_is_writable(inside):
    paths = ["/tmp/x", "/tmp/state/x", "/var/tmp/x", "/dev/shm/x", "/etc/x", "/mnt/x"]  # noqa: S108 - the pod's
    assert inside.evaluate(attempts(*(f"open({path!r}, 'w')" for path in paths))) == []
    assert inside.evaluate(attempts("os.symlink('/etc/shadow', '/mnt/data/link') or open('/mnt/data/link')")) == []


def test_a_link_is_not_followed_by_the_server(inside):
    inside.run("import os\nfor name in ('/etc/shadow', '/proc/1/environ'): os.symlink(name, name.replace('/', '_'))")
    for name in ("_etc_shadow", "_proc_1_environ"):
        reply = inside.client.call("GET", f"/sessions/{inside.session}/files/{name}")
        assert (reply.status >= 400, SECRET.encode() in reply.body) == (True, False)


def test_the_secret_of_the_server_is_nowhere(inside):
    code = """
        import os
        found = [str(dict(os.environ)).encode()]
        for pid in range(1, 400):
            for name in ('environ', 'cmdline', 'mem', 'maps', 'auxv', 'stack'):
                try: found.append(open(f'/proc/{pid}/{name}', 'rb').read(1000))
                except OSError: pass
        found
    """
    found = inside.evaluate(code)
    assert found  # its own command line
    assert not any(secret.encode() in one for one in found for secret in (SECRET, TOKEN))


def test_without_landlock_memory_and_environment_of_the_server_are_out_of_reach(tmp_path):
    """As in gVisor, which has none. The code sees the other processes, and could forge results with their memory."""
    with restricted_pod(tmp_path, has_landlock=False, modules="json") as pod:
        inside = Inside(pod)
        assert inside.client.call("GET", "/health").json["isolation"]["landlock"] == "no"
        code = """
            import os
            own, reached = os.getpid(), {}
            for pid in (int(name) for name in os.listdir('/proc') if name.isdigit()):
                for name in ('environ', 'mem', 'maps', 'fd/0', 'auxv'):
                    try: os.close(os.open(f'/proc/{pid}/{name}', os.O_RDWR if name == 'mem' else os.O_RDONLY))
                    except OSError: continue
                    reached.setdefault(pid == own, []).append((name, open(f'/proc/{pid}/cmdline').read()))
            reached
        """
        reached = inside.evaluate(code)
        assert {name for name, _ in reached[True]} >= {"environ", "maps"}  # its own process
        others = [found for found in reached.get(False, ()) if "bwrap" not in found[1]]  # the container runtime
        assert others == []


def test_the_server_and_its_other_processes_get_no_signal(inside):
    if not landlock.scopes_signals():
        pytest.skip("the filter refuses all signals on this kernel: see test_seccomp")
    code = """
        import os, signal
        sent = []
        for pid in [-1, 0, *range(1, 400)]:
            if pid in (0, os.getpid()): continue
            for send in (os.kill, lambda pid, number: signal.pidfd_send_signal(os.pidfd_open(pid), number)):
                try: send(pid, 0)
                except OSError: continue
                sent.append(pid)
        sent
    """
    # With -1 the kernel signals what it may, which is only the code itself, and with 0 nothing is sent.
    assert set(inside.evaluate(code)) <= {-1}


def test_limits_of_the_server_cannot_be_changed(inside):
    calls = [f"resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))" for pid in (1, 2, 3)]
    calls.append("resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)")
    assert inside.evaluate(attempts(*calls)) == []
    assert inside.evaluate("import resource; resource.getrlimit(resource.RLIMIT_CORE)") == (0, 0)


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"])
def test_there_is_no_network(inside, family, kind):
    assert inside.evaluate(attempts(f"socket.socket(socket.{family}, socket.{kind})")) == []


def test_programs_that_the_code_starts_have_no_network_either(inside):
    code = """
        import subprocess, sys
        program = 'import socket; socket.create_connection(("127.0.0.1", PORT))'.replace('PORT', str(%d))
        subprocess.run([sys.executable, '-c', program], capture_output=True, text=True).returncode
    """
    assert inside.evaluate(code % inside.pod.port) != 0
    assert inside.evaluate("import socket, asyncio\nasyncio.run(asyncio.sleep(0, 'a loop needs a socket pair'))")


def test_other_processes_cannot_be_traced_or_changed(inside):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(8)
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        results = []
        for pid in (1, 2, 3, os.getppid()):
            results.append(libc.ptrace(16, pid, 0, 0))
            results.append(libc.process_vm_readv(pid, vector, 1, vector, 1, 0))
            results.append(libc.syscall(438, libc.syscall(434, pid, 0), 3, 0))  # pidfd_getfd
        results.append(libc.unshare(0x10000000))
        results.append(libc.mount(b'none', b'/mnt/data', b'tmpfs', 0, 0))
        set(results)
    """
    assert inside.evaluate(code) == {-1}


def test_a_forged_frame_is_not_the_result_of_another_call(inside, tmp_path):
    with restricted_pod(tmp_path, modules="json") as pod:
        attacker = Inside(pod)
        code = """
            import os, json
            frame = json.dumps({"reply": "x", "status": "success", "result": "'forged'"}).encode()
            for descriptor in range(3, 4100):
                try: os.write(descriptor, len(frame).to_bytes(4, 'big') + frame)
                except OSError: pass
            'real'
        """
        reply = attacker.run(code)
        assert reply["result"] in ("'real'", None)
        assert "forged" not in str(reply)


def test_memory_and_processes_are_watched(tmp_path):
    for code in (
        "x = []\nwhile True: x.append(bytearray(16 << 20))",
        "import os, time\nfor _ in range(200): os.fork() or time.sleep(60)\ntime.sleep(60)",
    ):
        with restricted_pod(tmp_path, modules="json") as pod:
            reply = Inside(pod).run(code, timeout_seconds=50)
            assert "MemoryError" in reply["stderr"] or reply["reason"] in ("oom", "it had more than 128 processes"), (
                reply
            )
