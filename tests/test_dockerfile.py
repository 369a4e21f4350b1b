"""The Dockerfile uses the Makefile's steps, and its image gives a process no more rights than it needs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.servers import PROJECT
from tools.dockerfile import Stage, load, parse, read_command, read_copy, read_env, read_health_check

STAGES = load(PROJECT / "Dockerfile")
BUILDER, FINAL = STAGES

# Steps of the image beyond the Makefile's. Any other RUN step belongs in the Makefile.
ALSO_ALLOWED = (
    r"apt-get update && apt-get install --yes --no-install-recommends build-essential",
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


def test_the_image_installs_with_the_target_of_make_run() -> None:
    (install,) = (step for step in BUILDER.texts("RUN") if step.startswith("make "))
    variables = dict(word.split("=", 1) for word in install.split() if "=" in word)
    assert "install" in install.split()
    makefile = (PROJECT / "Makefile").read_text()
    assert re.search(r"^run: install\b", makefile, re.MULTILINE)
    for variable in variables:
        assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), f"the Makefile knows no {variable}"
    assert variables["EDITABLE"] == "", "the image holds no checkout"
    assert read_copy(FINAL.texts("COPY")[0]).sources == (variables["VENV"],)


def test_a_build_without_the_extensions_fails() -> None:
    assert environment(BUILDER)["KEYFENCE_COMPILED"] == "required"


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
    assert FINAL.texts("USER")[-1] == "keyfence"
    assert any(re.match(r"useradd .*\bkeyfence$", step) for step in FINAL.texts("RUN"))


def test_the_image_writes_no_bytecode() -> None:
    assert environment(FINAL)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_health_check_uses_the_admin_listener_without_a_shell() -> None:
    (check,) = FINAL.texts("HEALTHCHECK")
    command = read_health_check(check)
    assert command[:2] == ["python", "-c"]
    assert re.search(r"http://127\.0\.0\.1:9464/(healthz|readyz)", command[2])
    compile(command[2], "HEALTHCHECK", "exec")


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


def test_the_final_image_holds_no_compiler() -> None:
    assert not any("apt-get" in step for step in FINAL.texts("RUN"))
    assert FINAL.image.endswith("-slim")


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
            arguments = ["VENV=/nonexistent/venv" if a.startswith("VENV=") else a for a in step.split()[1:]]
            plan = subprocess.run(
                ["make", "--dry-run", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True
            )
            assert "-m pip install" in plan.stdout
