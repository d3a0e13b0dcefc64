"""Container images: what their Containerfiles say, and their programs, installed and built with the same commands.

No container engine is needed for most of it: the commands that build them run in a folder (`make test-install`).
`make test-images` builds the images with buildah on a base image of its own, because registries may be out of reach.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containerfile import ROOT, USER, Containerfile, running
from fixtures_server import create_key

FILES = {name: ROOT / "deploy" / name / "Containerfile" for name in ("server", "sandbox")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"server": {"kubernetes", "mcp", "objectstore", "postgres", "server"}, "sandbox": {"sandbox"}}
NAMES = list(FILES)
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)(?:\[.*\])?==([^\s;]+)", re.MULTILINE)
BASE = "localhost/python:test"
SHARED_LIBRARIES = (
    "ca-certificates,libbz2-1.0,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,libssl3,libuuid1,zlib1g"
)
SCRIPT = "answers: [{reply: [{text: 'You said: <<text>>'}]}]"


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def file(name) -> Containerfile:
    return Containerfile(FILES[name])


# ── Containerfiles ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_section_begins_with_a_base_image_of_an_exact_version(file):
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-\w+", file.arguments["PYTHON_IMAGE"])
    assert [section[0].text.split()[0] for section in file.sections] == ["${PYTHON_IMAGE}"] * 2


def test_every_copied_file_exists_and_is_part_of_the_build_context(file):
    copied = [one.words[:-1] for one in file.build if one.name == "COPY"]
    sources = [source for words in copied for source in words]
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    ]

    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in allowed), f"{source} is ignored"
    assert not any(one.name == "ADD" for section in file.sections for one in section)


def test_every_package_is_installed_from_a_lock_with_its_hash(name, file):
    commands = [
        command for one in file.build if one.name == "RUN" for command in one.text.split("&&") if "pip" in command
    ]
    installed = [command for command in commands if " install " in command]

    assert len(installed) == 3
    for command in installed:
        is_project = "/wheels/" in command
        assert "--no-index --no-deps" in command or "--no-deps --no-index" in command if is_project else True
        assert is_project or "--require-hashes" in command
    assert f"-r requirements/{name}.lock" in installed[1]
    assert any(command.strip().endswith(" check") for command in commands)


def test_the_image_runs_a_command_of_the_package_as_a_user_with_a_number_and_has_no_package_manager(name, file):
    removed = next(one.text for one in file.image if one.name == "RUN")

    assert file.last("USER").text == f"{USER}:{USER}"
    assert f"--uid {USER} " in removed
    assert file.command[0] in PROJECT["scripts"]
    assert file.command[1] == {"server": "serve", "sandbox": "sandbox"}[name]
    assert "site-packages/*" in removed
    assert "/usr/local/bin/pip*" in removed
    assert [one.text.split()[0] for one in file.image if one.name == "COPY"] == ["--from=build"]
    assert not any(one.name == "HEALTHCHECK" for one in file.image), "Kubernetes has its own probes"


@pytest.mark.parametrize("lock", [*NAMES, "build"])
def test_a_lock_of_an_image_has_the_versions_that_are_tested(lock):
    def pins(which: str) -> set[tuple[str, str]]:
        return set(PIN.findall((ROOT / "requirements" / f"{which}.lock").read_text(encoding="utf-8")))

    assert pins(lock)
    assert pins(lock) - pins("dev") == set(), "run `make lock`"


def test_the_lock_of_an_image_has_the_packages_of_its_extras(name):
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(line for extra in EXTRAS[name] & set(extras) for line in extras[extra])]
    names = {re.split(r"[\[<>=; ]", line)[0] for line in wanted} - {PROJECT["name"]}
    locked = {found[0] for found in PIN.findall((ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8"))}

    assert names - locked == set(), f"the Makefile compiles requirements/{name}.lock without one of {EXTRAS[name]}"


# ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_server(file: Containerfile, root: list[str], mounts: list[str], directory: Path) -> None:
    """The server starts with mounted keys and configuration, answers with a key, and writes to its volumes only."""
    key = create_key(directory, "me")
    rotated = subprocess.run(
        [sys.executable, "-m", "antwort", "keys", "rotate-compaction"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "ANTWORT_COMPACTION_KEYS_FILE": "compaction-keys.json"},
        cwd=directory,
        check=True,
        capture_output=True,
    )
    assert rotated.returncode == 0
    (directory / "script.yaml").write_text(SCRIPT, encoding="utf-8")
    (directory / "antwort.yaml").write_text(
        "models: {m: {kind: scripted, script: /mnt/script.yaml}}\n"
        "auth: {keys_file: /mnt/keys.json}\n"
        "compaction: {keys_file: /mnt/compaction-keys.json}\n"
        "providers: {code_interpreter: {enabled: false}}\n",
        encoding="utf-8",
    )
    mounts = [*mounts, "--ro-bind", str(directory), "/mnt"]
    settings = {"ANTWORT_CONFIG": "/mnt/antwort.yaml", "ANTWORT_SERVER_PORT": "PORT"}
    with running(file, root, settings, mounts) as client:
        asked = {"model": "m", "input": "hello", "store": True}
        assert client.post("/v1/responses", json=asked).status_code == 401
        answer = client.post("/v1/responses", json=asked, headers={"authorization": f"Bearer {key}"})
        assert answer.json()["output"][0]["content"][0]["text"] == "You said: hello"


def check_sandbox(file: Containerfile, root: list[str], mounts: list[str]) -> None:
    """The sandbox server runs code without namespaces, once, as the user of the image, on a read-only root."""
    settings = {"SANDBOX_SINGLE_TENANT": "true", "SANDBOX_TOKEN": "secret", "SANDBOX_PORT": "PORT"}
    code = (
        "import os, pathlib, numpy, pandas, matplotlib\n"
        "print(os.getuid(), sorted(name for name in os.environ if 'TOKEN' in name))\n"
        "for path in ('/x', '/opt/antwort/x', '/usr/x'):\n"
        "    try: open(path, 'w')\n"
        "    except OSError: print('refused')\n"
        "def has_token(path):\n"
        "    try: return b'SANDBOX_TOKEN' in path.read_bytes()\n"
        "    except OSError: return False\n"
        "print('token of', [str(path) for path in pathlib.Path('/proc').glob('[0-9]*/environ') if has_token(path)])\n"
    )
    with running(file, root, settings, mounts) as client:
        health = client.get("/health").json()
        assert health["capacity"] == 1
        assert health["isolation"]["namespaces"].startswith("no: "), "a restricted pod cannot make any"
        assert client.post("/execute", json={"code": code}).status_code == 401
        headers = {"authorization": "Bearer secret"}
        ran = client.post("/execute", json={"code": code}, headers=headers, timeout=60).json()
        expected = [f"{USER} []", "refused", "refused", "refused", "token of []"]
        assert (ran["stderr"], ran["stdout"].splitlines()) == ("", expected)
        assert client.post("/execute", json={"code": code}, headers=headers).status_code == 409


def check(name: str, file: Containerfile, directory: Path, root: list[str], mounts: list[str]) -> None:
    if name == "server":
        check_server(file, root, mounts, directory)
    else:
        check_sandbox(file, root, mounts)


@pytest.mark.install
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs bubblewrap")
def test_the_commands_of_the_build_make_an_installation_that_runs_as_in_a_pod(name, file, tmp_path):
    folders = {path: str(tmp_path / path.strip("/")) for path in ("/source", "/build", "/wheels", "/opt/antwort")}
    source = Path(folders["/source"])
    for one in file.build:
        if one.name == "COPY":
            *sources, target = one.words
            for path in sources:
                to = source / target / ("" if (ROOT / path).is_dir() else Path(path).name)
                to.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / path).is_dir():
                    shutil.copytree(ROOT / path, to, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / path, to)
        elif one.name == "RUN":
            command = re.sub(r"(?<=[\s=])python(?= )", sys.executable, f" {one.text}")
            command = re.sub(r"(?<=\s)/(?:build|wheels|opt/antwort)\b", lambda found: folders[found[0]], command)
            done = subprocess.run(["sh", "-ec", command], cwd=source, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + done.stdout

    installed = folders["/opt/antwort"]
    assert not list(Path(installed).glob("lib/python*/site-packages/pip")), "the environment has no package manager"
    assert not list(Path(installed).glob("bin/pip*"))
    root = [
        word
        for path in sorted(Path("/").iterdir())
        if path.name not in {"dev", "opt", "proc", "run", "sys", "tmp", "var"}
        for word in (
            ["--symlink", str(path.readlink()), str(path)] if path.is_symlink() else ["--ro-bind", str(path), str(path)]
        )
    ]
    # Its scripts name their interpreter by the path at which it was made.
    check(
        name,
        file,
        tmp_path / "mounted",
        [*root, "--ro-bind", installed, "/opt/antwort"],
        ["--ro-bind", installed, installed],
    )


@pytest.fixture(scope="module")
def build() -> Iterator[Callable[[str], Path]]:
    """Builds an image with buildah; returns the directory of its root file system."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))):
        pytest.skip("needs root, buildah and debootstrap: `make test-images` installs them on Debian")
    with tempfile.TemporaryDirectory() as directory:
        storage = ("--root", f"{directory}/storage", "--runroot", f"{directory}/run")

        def buildah(*arguments: str) -> str:
            done = subprocess.run(["buildah", *storage, *arguments], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout.strip()

        def build(name: str) -> Path:
            mounts = [path for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()]
            volumes = [word for path in mounts for word in ("--volume", f"{path}:{path}:ro")]
            options = ("--isolation", "chroot", "--pull-never", "--build-arg", f"PYTHON_IMAGE={BASE}", *volumes)
            context = ("--ignorefile", str(ROOT / ".dockerignore"), "--file", str(FILES[name]))
            buildah("build", *options, *context, "--tag", f"localhost/{name}:test", str(ROOT))
            return Path(buildah("mount", buildah("from", "--pull-never", f"localhost/{name}:test")))

        make_base_image(Path(directory), buildah)
        try:
            yield build
        finally:
            buildah("rm", "--all")
            buildah("rmi", "--all", "--force")


def make_base_image(directory: Path, buildah: Callable[..., str]) -> None:
    """An image with Debian and this Python in /usr/local, instead of that of a registry."""
    root = directory / "root"
    suite = next(
        line.split("=")[1] for line in Path("/etc/os-release").read_text().splitlines() if "VERSION_CODENAME" in line
    )
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={SHARED_LIBRARIES}", suite, str(root)]
    done = subprocess.run(bootstrap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    unneeded = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a")
    shutil.copytree(sys.base_prefix, root / "usr/local", symlinks=True, dirs_exist_ok=True, ignore=unneeded)
    subprocess.run(["chroot", str(root), "ldconfig"], check=True, capture_output=True)
    container = buildah("from", "scratch")
    buildah("copy", "--quiet", container, str(root), "/")
    buildah("commit", "--quiet", "--rm", container, BASE)


@pytest.mark.images
@pytest.mark.parametrize("name", NAMES)
def test_the_image_is_built_and_runs_as_in_a_pod(name, build, tmp_path):
    root, file = build(name), Containerfile(FILES[name])
    left = [path for pattern in ("pip", "pip3", "uv-build", "gcc") for path in root.glob(f"usr/*/bin/{pattern}")]

    assert left == []
    assert not list(root.glob("usr/local/lib/python3*/site-packages/*"))
    assert not list(root.glob("**/hatchling"))
    assert not (root / "source").exists()
    check(name, file, tmp_path / "mounted", ["--ro-bind", str(root), "/"], [])
