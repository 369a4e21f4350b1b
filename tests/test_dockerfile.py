"""The Dockerfile uses the Makefile's steps, and its image gives a process no more rights than it needs."""

from __future__ import annotations

import re
import subprocess
import tomllib

import click
import pytest

from keyfence.cli.main import cli
from tests.servers import PROJECT
from tools.dockerfile import Stage, load, parse, read_command, read_copy, read_env, read_health_check

STAGES = load(PROJECT / "Dockerfile")
BUILDER, FINAL = STAGES

# Steps of the image beyond the Makefile's. Any other RUN step belongs in the Makefile.
ALSO_ALLOWED = (
    r"apt-get update && apt-get install --yes --no-install-recommends [a-z0-9 -]+"
    r"( && rm -rf /var/lib/apt/lists)?",
    r"useradd .*",
)


def environment(stage: Stage) -> dict[str, str]:
    return {name: value for text in stage.texts("ENV") for name, value in read_env(text).items()}


def test_every_docker_step_is_a_makefile_target() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    for stage in STAGES:
        for step in stage.texts("RUN"):
            if any(re.fullmatch(allowed, step) for allowed in ALSO_ALLOWED):
                continue
            command, *words = step.split()
            assert command == "make", step
            assert {word for word in words if "=" not in word} <= targets, step


def test_the_image_is_built_from_the_wheel() -> None:
    steps = [step.split() for step in BUILDER.texts("RUN") if step.startswith("make ")]
    assert [words[1] for words in steps] == ["wheel", "install-wheel", "sbom"]
    [into] = [word.removeprefix("INTO=") for word in steps[1] if "=" in word]
    assert read_copy(FINAL.texts("COPY")[0]).sources == (into,), "the image holds no checkout"
    assert steps[2][2:] == [f"OF={into}", f"INTO={into}/sbom.cdx.json"]


def test_a_build_without_the_extensions_fails() -> None:
    [installed] = [step for step in BUILDER.texts("RUN") if step.startswith("apt-get")]
    assert {"gcc", "libc6-dev", "python3-dev"} <= set(installed.split())
    plan = subprocess.run(
        ["make", "-n", "wheel", "VENV=/x"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "tools.dist --only compiled" in plan.stdout


def test_the_copied_files_exist_and_reach_the_build() -> None:
    admitted = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for stage in STAGES:
        for copy in map(read_copy, stage.texts("COPY")):
            if copy.stage:
                assert copy.stage in {other.name for other in STAGES}
                continue
            for source in copy.sources:
                assert (PROJECT / source).exists(), source
                assert source in admitted, f".dockerignore leaves {source} out"


def test_the_image_runs_as_an_unprivileged_user() -> None:
    user = FINAL.texts("USER")[-1]
    # Kubernetes' runAsNonRoot accepts numbers only.
    assert re.fullmatch(r"([1-9]\d{4,}):\1", user)
    assert any(step.startswith(f"useradd --uid {user.partition(':')[0]} ") for step in FINAL.texts("RUN"))


def test_the_labels_say_what_the_package_says() -> None:
    [text] = FINAL.texts("LABEL")
    labels = {name.rpartition("image.")[2]: value for name, value in read_env(text).items()}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    same = {"title": "name", "description": "description", "licenses": "license", "version": "version"}
    assert {name: labels[name] for name in same} == {name: project[key] for name, key in same.items()}
    assert labels["base.name"] == FINAL.image


def test_the_image_writes_no_bytecode() -> None:
    assert environment(FINAL)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_health_check_is_a_command_of_keyfence_and_needs_no_shell() -> None:
    (check,) = FINAL.texts("HEALTHCHECK")
    name, command, *arguments = read_health_check(check)
    assert name == "keyfence"
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    admin = found.make_context(command, arguments).params["admin"]  # raises click.UsageError
    configuration = (PROJECT / read_command(FINAL.texts("CMD")[-1])[2]).read_text()
    assert f"admin: 0.0.0.0:{admin.rpartition(':')[2]}\n" in configuration


def test_keyfence_is_the_first_process() -> None:
    assert read_command(FINAL.texts("ENTRYPOINT")[-1]) == ["keyfence"]
    command = read_command(FINAL.texts("CMD")[-1])
    assert command[:2] == ["run", "--config"]
    assert (PROJECT / command[2]).exists()


def test_the_image_exposes_the_ports_of_its_configuration() -> None:
    configuration = (PROJECT / read_command(FINAL.texts("CMD")[-1])[2]).read_text()
    ports = re.findall(r"0\.0\.0\.0:(\d+)", configuration)
    assert ports
    assert sorted(FINAL.texts("EXPOSE")[0].split()) == sorted(ports)


def test_the_final_image_holds_no_compiler_and_no_pip() -> None:
    [installed] = [step for step in FINAL.texts("RUN") if step.startswith("apt-get")]
    packages = installed.partition("--no-install-recommends ")[2].partition(" &&")[0].split()
    assert packages == ["ca-certificates", "python3"]
    assert FINAL.image.endswith("-slim")
    assert BUILDER.image == FINAL.image, "the wheel is for the image's Python"


def test_the_dockerfile_holds_no_secret_and_names_no_registry() -> None:
    text = (PROJECT / "Dockerfile").read_text()
    assert not re.search(r"(?i)\bARG\b|password|token|secret|index-url|https?://(?!127\.0\.0\.1)", text)
    assert all("/" not in stage.image for stage in STAGES)


@pytest.mark.parametrize("text", ["RUN true", "FROM a\nADD b c", "FROM a\nVOLUME /x"])
def test_the_reader_refuses_unknown_instructions(text: str) -> None:
    with pytest.raises(ValueError, match="unknown instruction"):
        parse(text)


def test_the_reader_joins_lines_and_skips_comments() -> None:
    stages = parse("# x\nFROM a AS b\nRUN one \\\n  # why\n  two\nCOPY --from=z /p /q d/\n")
    assert [(stage.image, stage.name) for stage in stages] == [("a", "b")]
    assert stages[0].texts("RUN") == ["one two"]
    assert read_copy(stages[0].texts("COPY")[0]) == read_copy("--from=z /p /q d/")


def test_make_has_a_recipe_for_each_step() -> None:
    for step in BUILDER.texts("RUN"):
        if step.startswith("make "):
            arguments = [*step.split()[1:], "VENV=/nonexistent/venv"]
            plan = subprocess.run(
                ["make", "--dry-run", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True
            )
            assert "-m tools." in plan.stdout or " install " in plan.stdout, step
