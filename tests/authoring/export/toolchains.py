"""Compiles and runs generated builders with each language's own tools, and asks their formatters.

Rule: a language whose tools are missing is skipped with the reason; nothing is assumed to work.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from keyfence.authoring.export.languages import LANGUAGES
from keyfence.authoring.export.render import Named
from tests.servers import PROJECT

COMPILE_SECONDS = 110.0
NODE_TOOLS = PROJECT / "tests" / "node" / "node_modules" / ".bin"
Calls = Sequence[tuple[Named, Sequence[str]]]


class Tools(NamedTuple):
    """What a language needs, and the packages that have it."""

    commands: tuple[str, ...]
    where: str


TOOLS = {
    "python": Tools((), ""),
    "go": Tools(("go", "gofmt"), "apt install golang-go"),
    "typescript": Tools(("node", "tsc"), "npm install in tests/node"),
    "java": Tools(("java", "javac"), "apt install default-jdk-headless"),
    "rust": Tools(("rustc",), "apt install rustc"),
    "lua": Tools(("lua",), "apt install lua5.4"),
}
_OTHER_NAMES = {"lua": ("lua5.4", "lua5.3", "lua5.1", "luajit")}


def tool(name: str) -> str:
    """Returns the path of a tool; "" if it is not here."""
    for one in (name, *_OTHER_NAMES.get(name, ())):
        found = shutil.which(one) or shutil.which(one, path=str(NODE_TOOLS))
        if found and _runs(found):
            return found
    return ""


@functools.cache
def _runs(path: str) -> bool:
    """Returns whether a program runs at all: that of rustup is there without any compiler behind it."""
    question = "version" if Path(path).name == "go" else "-v" if "lua" in Path(path).name else "--version"
    if Path(path).name == "gofmt":
        return True  # it has no such option
    done = subprocess.run([path, question], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def needs(language: str) -> None:
    """Skips a test if the language's tools are not here."""
    missing = [name for name in TOOLS[language].commands if not tool(name)]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here ({TOOLS[language].where})")


def run(*command: str, cwd: Path, text: str = "", **environment: str) -> str:
    """Runs a program and returns its output; a failure shows all that it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        input=text.encode(),
        capture_output=True,
        timeout=COMPILE_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )
    shown = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert done.returncode == 0, f"{command}: {shown[-4000:]}"
    return done.stdout.decode()


def formatted(language: str, code: str, folder: Path) -> None:
    """Asserts that the language's formatter would not change the code, if there is one here."""
    folder = folder / "formatted"
    folder.mkdir()
    path = folder / f"keys{LANGUAGES[language].suffix}"
    path.write_text(code)
    if language == "python":
        run(
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--isolated",
            "--no-cache",
            "--diff",
            path.name,
            cwd=folder,
        )
        rules = ("--select", "E9,F,I,UP,B")
        run(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", *rules, path.name, cwd=folder)
    elif language == "go":
        assert run(tool("gofmt"), "-d", path.name, cwd=folder) == ""
    elif language == "rust" and tool("rustfmt"):
        run(tool("rustfmt"), "--check", "--edition", "2021", path.name, cwd=folder)


def answers(language: str, code: str, calls: Calls, folder: Path) -> list[bytes | None]:
    """Compiles the code with a program that makes these calls, runs it, and returns each key; None for an
    error."""
    lines = globals()[f"_{language}"](code, calls, folder).splitlines()
    assert len(lines) == len(calls)
    return [bytes.fromhex(line[4:]) if line.startswith("key ") else None for line in lines]


def _arguments(language: str, texts: Sequence[str]) -> str:
    return ", ".join(map(LANGUAGES[language].text, texts))


def _python(code: str, calls: Calls, folder: Path) -> str:
    (folder / "redis_keys.py").write_text(code)
    lines = ["import redis_keys", "def show(make, *texts):", "    try:"]
    lines += ["        print('key ' + make(*texts).encode().hex())", "    except redis_keys.InvalidKeyError:"]
    lines += ["        print('error')"]
    if not calls:
        lines = ["import redis_keys"]
    for named, texts in calls:
        lines.append(f"show(redis_keys.{named.function}, {_arguments('python', texts)})")
    (folder / "main.py").write_text("\n".join(lines) + "\n")
    run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir=/dev/null",
        "redis_keys.py",
        cwd=folder,
        MYPYPATH="",
    )
    return run(sys.executable, "-W", "error", "main.py", cwd=folder)


def _go(code: str, calls: Calls, folder: Path) -> str:
    package = folder / "rediskeys"
    package.mkdir()
    (package / "keys.go").write_text(code)
    (folder / "go.mod").write_text("module example.com/keys\n\ngo 1.19\n")
    lines = ["package main", "", 'import (\n"fmt"\n"example.com/keys/rediskeys"\n)']
    lines += ["func show(key string, err error) {", "if err != nil {", 'fmt.Println("error")', "return", "}"]
    lines += ['fmt.Printf("key %x\\n", key)', "}", "func main() {"]
    for named, texts in calls:
        call = f"rediskeys.{named.function}({_arguments('go', texts)})"
        lines.append(f"show({call})" if texts else f"show({call}, nil)")
    if not calls:
        lines[2] = 'import _ "example.com/keys/rediskeys"'
        lines[3:] = ["func main() {"]
    (folder / "main.go").write_text("\n".join([*lines, "}"]) + "\n")
    environment = {"GOFLAGS": "-mod=mod", "GOCACHE": str(folder.parent / "go-cache"), "GO111MODULE": "on"}
    run(tool("go"), "vet", "./rediskeys", cwd=folder, **environment)
    return run(tool("go"), "run", ".", cwd=folder, **environment)


def _typescript(code: str, calls: Calls, folder: Path) -> str:
    (folder / "redisKeys.ts").write_text(code)
    lines = ['import * as keys from "./redisKeys.js";', "declare const Buffer: any;"]
    lines += ["declare const console: any;", "function show(make: () => string): void {", "  try {"]
    lines += ['    console.log("key " + Buffer.from(make()).toString("hex"));', "  } catch (error) {"]
    lines += ["    if (!(error instanceof RangeError)) throw error;", '    console.log("error");', "  }", "}"]
    if not calls:
        lines = ['import "./redisKeys.js";']
    for named, texts in calls:
        lines.append(f"show(() => keys.{named.function}({_arguments('typescript', texts)}));")
    (folder / "main.ts").write_text("\n".join(lines) + "\n")
    (folder / "package.json").write_text('{"type": "module"}')
    options = ["--strict", "--noUnusedLocals", "--noImplicitOverride", "--target", "es2022"]
    options += ["--module", "nodenext", "--moduleResolution", "nodenext", "--outDir", "out"]
    run(tool("tsc"), *options, "main.ts", cwd=folder)
    (folder / "out" / "package.json").write_text('{"type": "module"}')
    return run(tool("node"), "out/main.js", cwd=folder)


def _java(code: str, calls: Calls, folder: Path) -> str:
    (folder / "RedisKeys.java").write_text(code)
    lines = ["import java.nio.charset.StandardCharsets;", "import java.util.HexFormat;"]
    lines += ["import java.util.function.Supplier;", "final class Main {"]
    lines += ["static void show(Supplier<String> make) { try {"]
    lines += ["byte[] key = make.get().getBytes(StandardCharsets.UTF_8);"]
    lines += ['System.out.println("key " + HexFormat.of().formatHex(key));']
    lines += ['} catch (IllegalArgumentException e) { System.out.println("error"); } }']
    chunks = [calls[at : at + 200] for at in range(0, len(calls), 200)]  # a method has at most 64 kB of code
    for number, chunk in enumerate(chunks):
        lines.append(f"static void part{number}() {{")
        for named, texts in chunk:
            lines.append(f"show(() -> RedisKeys.{named.function}({_arguments('java', texts)}));")
        lines.append("}")
    parts = " ".join(f"part{number}();" for number in range(len(chunks)))
    lines += [f"public static void main(String[] args) {{ {parts} }}", "}"]
    (folder / "Main.java").write_text("\n".join(lines) + "\n")
    run(
        tool("javac"),
        "-Xlint:all",
        "-Werror",
        "-encoding",
        "UTF-8",
        "RedisKeys.java",
        "Main.java",
        cwd=folder,
    )
    return run(tool("java"), "-Xshare:auto", "Main", cwd=folder)


def _rust(code: str, calls: Calls, folder: Path) -> str:
    (folder / "redis_keys.rs").write_text(code)
    lines = ["#[allow(dead_code)]", "mod redis_keys;"]
    if calls:
        lines += ["fn show(key: Result<String, redis_keys::InvalidKey>) {", "match key {"]
        lines += [
            'Ok(key) => println!("key {}", key.bytes().map(|b| format!("{b:02x}")).collect::<String>()),'
        ]
        lines += ['Err(_) => println!("error"),', "}", "}"]
    lines.append("fn main() {")
    for named, texts in calls:
        call = f"redis_keys::{named.function}({_arguments('rust', texts)})"
        lines.append(f"show({call});" if texts else f"show(Ok({call}.to_string()));")
    (folder / "main.rs").write_text("\n".join([*lines, "}"]) + "\n")
    run(tool("rustc"), "-D", "warnings", "--edition", "2021", "main.rs", cwd=folder)
    return run(str(folder / "main"), cwd=folder)


def _lua(code: str, calls: Calls, folder: Path) -> str:
    (folder / "redis_keys.lua").write_text(code)
    lines = ['local keys = require("redis_keys")', "local function show(make, ...)"]
    lines += ["  local done, key = pcall(make, ...)", "  if not done then"]
    lines += [
        '    assert(key:find("must", 1, true) or key:find("longer", 1, true), key)',
        '    print("error")',
    ]
    lines += [
        "  else",
        '    print("key " .. key:gsub(".", function(c) return ("%02x"):format(c:byte()) end))',
    ]
    lines += ["  end", "end"]
    for named, texts in calls:
        arguments = _arguments("lua", texts)
        lines.append(f"show(keys.{named.function}{', ' if texts else ''}{arguments})")
    (folder / "main.lua").write_text("\n".join(lines) + "\n")
    known = [one for one in ("lua", *_OTHER_NAMES["lua"]) if shutil.which(one)]
    first, *others = {run(one, "main.lua", cwd=folder) for one in known}
    assert not others, f"{known} differ"
    return first
