"""The part of `tools/clean_room.sh` that runs inside its namespaces. It installs with the network, then runs
without it.

Rule: a room sees only the checkout, the host's network settings, and pip's settings for packages and
certificates. The settings are read at run time and never become part of the project.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import dataclasses
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.ready import READY_PREFIX, parse_ready_line
from tools import dockerfile
from tools.smoke_run import ping

PROJECT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,make,ca-certificates"
MIRROR = os.environ.get("KEYFENCE_DEBIAN_MIRROR", "")  # empty: debootstrap's default
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = "visitor"
FEW_TESTS = "tests/cli/test_main.py tests/end_to_end/test_proxy.py"  # .ci/run has run all, interpreted too
PASSED_ON = r"(?i)(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
REDIS_PORT = 6379  # without the network, each port is free
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def say(text: str) -> None:
    print(f"clean room, {time.monotonic() - STARTED:4.0f} s: {text}", flush=True)


STARTED = time.monotonic()


def builders_python() -> str:
    """A Python of this machine with pip and setuptools. Debian's own may come without."""
    python = PROJECT / ".venv" / "bin" / "python"
    return str(python) if python.exists() else sys.executable


def host_settings() -> dict[str, str]:
    """Returns the environment that lets a room's pip reach the same indexes as this machine's pip."""
    settings = {name: value for name, value in os.environ.items() if re.fullmatch(PASSED_ON, name)}
    listed = subprocess.run(
        [builders_python(), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    # Lowest precedence first: files, then the environment.
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        section, _, rest = line.partition(".")
        name, _, value = rest.partition("=")
        if section in ("global", "install", ":env:") and name != "config-file":
            text = str(ast.literal_eval(value))
            settings[f"PIP_{name.upper().replace('-', '_')}"] = " ".join(text.split())
    return settings


def named_paths(settings: Mapping[str, str]) -> set[Path]:
    """Returns the files and directories of this machine that the settings name."""
    words = (word.removeprefix("file://") for value in settings.values() for word in value.split())
    found = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    # A package index in a directory keeps its files beside its pages.
    return {path.parent if path.name == "simple" and path.is_dir() else path for path in found}


class Root:
    """A directory tree to run commands in. Changes go into this root only; `below` stays unchanged."""

    def __init__(self, work: Path, name: str, below: Path, settings: Mapping[str, str]) -> None:
        self.path = work / name
        self.path.mkdir()
        self._settings = settings
        upper, scratch = work / f"{name}.upper", work / f"{name}.scratch"
        upper.mkdir()
        scratch.mkdir()
        layers = f"lowerdir={below},upperdir={upper},workdir={scratch}"
        if not mount("-t", "overlay", "-o", layers, "overlay", self.path, check=False):
            subprocess.run(["cp", "-a", f"{below}/.", self.path], check=True)
            mount("--bind", self.path, self.path)
        mount("-t", "proc", "proc", self.path / "proc")
        for place in ("tmp", "dev/shm"):
            (self.path / place).mkdir(exist_ok=True)
            mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.path / place)
        mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", self.path / "dev/pts")
        for file in ("/etc/resolv.conf", "/etc/hosts"):
            self._show(Path(file))
        for path in named_paths(settings):
            self._show(path)
        self._pass_on_apt_proxies()

    def _show(self, path: Path) -> None:
        """Mounts a file or directory of the host at the same path, read-only."""
        place = self.path / str(path).lstrip("/")
        if path.is_dir():
            if place.is_dir() and any(place.iterdir()):
                return  # the room has its own, for example /etc/ssl/certs
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        mount("--bind", path.resolve(), place)
        mount("-o", "remount,bind,ro", place)

    def _pass_on_apt_proxies(self) -> None:
        dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
        lines = re.findall(r"^Acquire::\S*Proxy\S* .*$", dumped, re.MULTILINE)
        (self.path / "etc/apt/apt.conf.d/99host").write_text("".join(f"{line}\n" for line in lines))

    def command(
        self,
        command: Sequence[str],
        user: str = "root",
        directory: str = "/",
        environment: Mapping[str, str] = {},
    ) -> list[str]:
        """Returns the command line that runs `command` in this root."""
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **self._settings, **environment}
        words = ["chroot", f"--userspec={user}", str(self.path), "/usr/bin/env", "-i", f"--chdir={directory}"]
        return words + [f"{name}={value}" for name, value in variables.items()] + list(command)

    def run(self, command: str, user: str = "root", directory: str = "/", **environment: str) -> None:
        """Runs a shell command. Raises SystemExit if it fails."""
        say(f"[{self.path.name}] {command}")
        words = self.command(["/bin/sh", "-ec", command], user, directory, environment)
        if "apt-get" not in command:
            code, output = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode, ""
        else:  # apt-get prints a line for each package, so its output is shown only on failure
            run = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            code, output = run.returncode, f"{run.stdout[-2000:]}{run.stderr[-2000:]}\n"
        if code:
            raise SystemExit(f"{output}clean room: failed with {code}: {command}")

    def install(self, packages: str) -> None:
        """Installs Debian packages."""
        self.run(
            f"apt-get -qq update && apt-get -qq --yes --no-install-recommends install {packages}",
            DEBIAN_FRONTEND="noninteractive",
        )

    def make_read_only(self) -> None:
        mount("-o", "remount,ro", self.path)


def mount(*arguments: str | Path, check: bool = True) -> bool:
    command = ["mount", *map(str, arguments)]
    return subprocess.run(command, check=check, stderr=None if check else subprocess.DEVNULL).returncode == 0


def make_base(base: Path) -> None:
    """Makes a bare Debian, unless the last run left one."""
    if (base / "etc/debian_version").exists():
        return
    say(f"debootstrap {SUITE}: {PACKAGES}")
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE]
    made = base.with_name(base.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    command += [str(made), *([MIRROR] if MIRROR else [])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"clean room: debootstrap failed:\n{run.stdout[-2000:]}")
    made.rename(base)


def copy_checkout(root: Root) -> str:
    """Copies the files that git tracks or would track, as in a clone. Returns the path of the copy."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    home = root.path / "home" / USER
    root.run(f"useradd --create-home {USER}")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (PROJECT / name).exists():
            (home / "keyfence" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, home / "keyfence" / name)
    root.run(f"chown -R {USER}: /home/{USER}")
    return f"/home/{USER}/keyfence"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The common input of all rooms. If `short` is set, the rooms run only some of the tests."""

    work: Path
    base: Path
    settings: Mapping[str, str]
    short: bool


def visitors_room(plan: Plan, name: str) -> Iterator[None]:
    """A user with a fresh clone. Installs until the first `yield`; then runs without the network."""
    root = Root(plan.work, name, plan.base, plan.settings)
    if name == "compiler":
        root.install("gcc libc6-dev python3-dev")
    directory = copy_checkout(root)
    required = {"KEYFENCE_COMPILED": "required"} if name == "compiler" else {}
    root.run("make install-test", USER, directory, **required)
    yield
    root.run("python3 -m tools.smoke_run", USER, directory)
    root.run(".venv/bin/keyfence --version", USER, directory)
    # The room without a compiler runs all tests, unless `short` is set. With a compiler, all tests run
    # outside the room.
    which = "" if name == "no-compiler" and not plan.short else FEW_TESTS
    # Without a compiler the tests run interpreted anyway. Failed tests run once more, as in .ci/run.
    tests = f'TESTS="{which}" PURE_TESTS=tests/test_compiled.py'
    root.run(f"make test {tests} || make test-failed {tests}", USER, directory)
    yield


def wheel_room(plan: Plan, name: str) -> Iterator[None]:
    """A user without clone, make and compiler: the pure wheel, and `keyfence look` to the first finding."""
    root = Root(plan.work, name, plan.base, plan.settings)
    root.run(f"useradd --create-home {USER}")
    directory = f"/home/{USER}"
    say(f"[{name}] tools.dist --only pure")
    build = [
        builders_python(),
        "-m",
        "tools.dist",
        "--only",
        "pure",
        "--into",
        f"{root.path}{directory}/dist",
    ]
    subprocess.run(build, cwd=PROJECT, check=True)
    root.run("python3 -m venv keyfence && keyfence/bin/pip install --quiet dist/*.whl", USER, directory)
    yield
    with running_redis(REDIS_PORT) as url:
        shutil.copy(PROJECT / "tools" / "first_finding.py", f"{root.path}{directory}")
        root.run(f"python3 first_finding.py keyfence/bin/keyfence {url}", USER, directory)
    yield


def container(plan: Plan, name: str) -> Iterator[None]:
    """Carries out the Dockerfile's steps until the first `yield`, then runs the resulting image."""
    roots: dict[str, Root] = {}
    for stage in dockerfile.load(PROJECT / "Dockerfile"):
        root = roots[stage.name] = Root(plan.work, f"{name}-{stage.name}", plan.base, plan.settings)
        directory, user, entry, command, health = "/", "root", [], [], []
        environment = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
        if plan.short:
            environment["CFLAGS"] = "-O0"  # it compiles there as well, and takes a third of the time
        for step in stage.instructions:
            match step.name:
                case "RUN":
                    root.run(step.text, user, directory, **environment)
                case "COPY":
                    copy_into(root, directory, dockerfile.read_copy(step.text), roots)
                case "ENV":
                    added = dockerfile.read_env(step.text)
                    environment |= {k: v.replace("$PATH", environment["PATH"]) for k, v in added.items()}
                case "WORKDIR":
                    directory = step.text
                    (root.path / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "USER":
                    user = step.text
                case "ENTRYPOINT":
                    entry = dockerfile.read_command(step.text)
                case "CMD":
                    command = dockerfile.read_command(step.text)
                case "HEALTHCHECK":
                    health = dockerfile.read_health_check(step.text)
    yield
    root.make_read_only()
    with running_redis(REDIS_PORT) as environment["REDIS_URL"]:
        run_container(root, entry + command, health, user, directory, environment)
    yield


def run_container(
    root: Root,
    command: Sequence[str],
    health: Sequence[str],
    user: str,
    directory: str,
    environment: Mapping[str, str],
) -> None:
    """Starts the image's command, pings each of its listeners, calls its health check, and ends it."""
    say(f"[{root.path.name}] {' '.join(command)}, as {user}, on a read-only root")
    process = subprocess.Popen(
        root.command(command, user, directory, environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith(READY_PREFIX)), "")
    print(f"  | {line.rstrip()}")
    if not line:
        raise SystemExit(f"clean room: the container ended with {process.wait()} before it was ready")
    for service, (_, port) in parse_ready_line(line).listeners.items():
        ping(service, ("127.0.0.1", port))
    subprocess.run(root.command(health, user, directory, environment), check=True, stdin=subprocess.DEVNULL)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    if process.returncode:
        raise SystemExit(f"clean room: the container ended with {process.returncode}")


@contextlib.contextmanager
def running_redis(port: int) -> Iterator[str]:
    """This machine's redis-server, for rooms that hold none. Yields its URL."""
    server = shutil.which("redis-server")
    if server is None:
        raise SystemExit("clean room: redis-server is not installed here: apt install redis-server")
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "/"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def copy_into(root: Root, directory: str, copy: dockerfile.Copy, roots: Mapping[str, Root]) -> None:
    """Carries out COPY: puts a directory's contents into the target; puts a file into it, or at its path."""
    source_root = roots[copy.stage].path if copy.stage else PROJECT
    target = root.path / os.path.join(directory, copy.target).lstrip("/")
    for source in (source_root / name.lstrip("/") for name in copy.sources):
        if source.is_dir():
            unwanted = () if copy.stage else ("__pycache__", "*.so", "*.c")
            ignore = shutil.ignore_patterns(*unwanted)
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        else:
            into = target / source.name if copy.target.endswith("/") else target
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into)


def leave_the_network() -> None:
    """Leaves this process and its future children with only a loopback interface of their own.

    So every port is free, and the run proves that an installed keyfence needs no network.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


ROOMS = {
    "no-compiler": visitors_room,
    "compiler": visitors_room,
    "wheel": wheel_room,
    "dockerfile": container,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/clean_room.sh")
    parser.add_argument("--work", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help="keep the bare Debian in this directory")
    parser.add_argument("--short", action="store_true", help="run only some of the tests, as .ci/run does")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(ROOMS):
        parser.error(f"unknown room: {', '.join(sorted(unknown))}")
    base = (options.base or options.work / "base").absolute()
    make_base(base)
    settings = host_settings()
    if options.short:
        settings["CFLAGS"] = "-O0"  # whether it builds is tested, not how fast it is
    plan = Plan(options.work, base, settings, options.short)
    rooms = [ROOMS[name](plan, name) for name in options.rooms or ROOMS]
    for room in rooms:
        next(room)
    leave_the_network()
    for room in rooms:
        next(room)
    say("done")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
