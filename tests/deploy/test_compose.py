"""deploy/compose.yaml names what exists, and the shop plays behind the keyfence that it configures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from keyfence.cli.main import cli
from tests.cli.test_main import keyfence
from tests.servers import PROJECT, Keyfence, running_redis

DEPLOY = PROJECT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIG: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "keyfence.yaml").read_text())
SHOP = ("catalog", "storefront", "orders", "mailer", "payments")
MODULES = PROJECT / "tests" / "node" / "node_modules"
KNOWN_BREACHES = {("payments", "scope.write"), ("storefront", "ttl.required"), ("catalog", "ttl.range")}


def mounts(service: str) -> dict[str, Path]:
    """Returns the files and folders of this repository that a service sees, by their place there."""
    pairs = (text.removesuffix(":ro").split(":") for text in SERVICES[service].get("volumes", ()))
    return {place: DEPLOY / source for source, place in pairs if source.startswith(".")}


def outside(service: str, path: str) -> Path:
    """Returns the file of this repository that a service sees at a path."""
    for place, source in mounts(service).items():
        if path == place or path.startswith(f"{place}/"):
            return source / path.removeprefix(place).lstrip("/")
    raise AssertionError(f"{service} sees no {path}")


def test_every_mounted_file_exists() -> None:
    for service, its in SERVICES.items():
        for source in mounts(service).values():
            assert source.exists(), (service, source)
        named = {text.split(":")[0] for text in its.get("volumes", ()) if text[0] != "."}
        assert named <= COMPOSE["volumes"].keys()


def test_docker_compose_accepts_it() -> None:
    docker = next((one for one in (["docker-compose"], ["docker", "compose"]) if has_compose(one)), None)
    if docker is None:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        [*docker, "-f", DEPLOY / "compose.yaml", "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def has_compose(command: list[str]) -> bool:
    return (
        bool(shutil.which(command[0]))
        and not subprocess.run([*command, "version"], capture_output=True, check=False).returncode
    )


def test_keyfence_is_called_with_options_that_it_has() -> None:
    name, *arguments = SERVICES["keyfence"]["command"]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    config = command.make_context(name, arguments).params["config"]  # raises click.UsageError
    assert outside("keyfence", config) == DEPLOY / "compose" / "keyfence.yaml"


def test_its_configuration_has_no_fault_and_no_warning() -> None:
    code, out, err = keyfence("check", "--strict", DEPLOY / "compose" / "keyfence.yaml")
    assert (code, err) == (0, ""), out


def test_promtool_accepts_prometheus_configuration(tmp_path: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    text = outside("prometheus", "/etc/prometheus/prometheus.yaml").read_text()
    for path in re.findall("/etc/prometheus/rules/[a-z]+.yml", text):
        text = text.replace(path, str(outside("prometheus", path)))
    (tmp_path / "prometheus.yaml").write_text(text)
    check = ["promtool", "check", "config", tmp_path / "prometheus.yaml"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_alertmanager_s_configuration_is_one() -> None:
    path = outside("alertmanager", "/etc/alertmanager/alertmanager.yaml")
    found = yaml.safe_load(path.read_text())
    assert found["route"]["receiver"] in {one["name"] for one in found["receivers"]}
    if shutil.which("amtool"):
        subprocess.run(["amtool", "check-config", path], check=True, capture_output=True)


def test_grafana_has_the_shipped_dashboard_and_prometheus_as_its_source() -> None:
    folder = "/etc/grafana/provisioning"
    providers = yaml.safe_load(outside("grafana", f"{folder}/dashboards/keyfence.yaml").read_text())
    boards = outside("grafana", providers["providers"][0]["options"]["path"])
    assert json.loads((boards / "keyfence.json").read_text())["title"] == "keyfence"
    sources = yaml.safe_load(outside("grafana", f"{folder}/datasources/keyfence.yaml").read_text())
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"


def test_every_address_is_one_where_somebody_listens() -> None:
    listeners = {int(one["listen"].rpartition(":")[2]): one["service"] for one in CONFIG["listeners"]}
    for service in SHOP:
        [port] = re.findall(r"redis://keyfence:(\d+)", " ".join(SERVICES[service]["command"]))
        assert listeners.pop(int(port)) == service
    assert not listeners
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == [
        f"keyfence:{CONFIG['metrics'].rpartition(':')[2]}"
    ]
    assert CONFIG["upstream"] == "redis://redis:6379"


def test_ports_are_published_on_the_loopback_address_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_there_is_no_way_around_keyfence() -> None:
    near_redis = {name for name, one in SERVICES.items() if set(one["networks"]) & {"upstream"}}
    assert near_redis == {"redis", "keyfence"}
    assert COMPOSE["networks"]["upstream"] == {"internal": True}
    assert "ports" not in SERVICES["redis"]


@pytest.mark.skipif(not shutil.which("node"), reason="no node here")
@pytest.mark.skipif(not (MODULES / "ioredis").is_dir(), reason="`npm ci` was not run in tests/node")
def test_the_shop_plays_a_round_and_breaks_its_policy_as_the_policy_says(
    tmp_path: Path,
) -> None:
    config = (DEPLOY / "compose" / "keyfence.yaml").read_text()
    config = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", config)
    shutil.copy(DEPLOY / "compose" / "policy.yaml", tmp_path)
    with running_redis() as redis:
        (tmp_path / "keyfence.yaml").write_text(config.replace(CONFIG["upstream"], redis.url))
        with Keyfence("--config", tmp_path / "keyfence.yaml", "--findings", "none") as running:
            play(running, tmp_path)
            with urllib.request.urlopen(f"{running.ready.admin}/report") as answer:
                found = {(row["service"], row["rule"]) for row in json.load(answer)}
    assert ("payments", "scope.write") in found
    assert found <= KNOWN_BREACHES


def play(running: Keyfence, folder: Path) -> None:
    """Plays a round of all services, as deploy/compose/rounds.sh does each minute."""
    lines = [
        f"{name.upper()}_REDIS=redis://127.0.0.1:{port}"
        for name, (_, port) in running.ready.listeners.items()
    ]
    (folder / "shop.env").write_text("\n".join(lines))
    shop = [sys.executable, PROJECT / "examples" / "shop" / "shop.py", folder / "shop.env", "--orders", "10"]
    done = subprocess.run(
        shop, env=os.environ | {"NODE_PATH": str(MODULES)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("service", SHOP)
def test_a_service_is_started_with_options_that_it_has(service: str) -> None:
    script = outside(service, SERVICES[service]["entrypoint"][1])
    assert re.search(r'^ +"\$@" --orders \d+ --seed ', script.read_text(), re.MULTILINE)
    _, program, *options = SERVICES[service]["command"]
    text = outside(service, program).read_text()
    text += (PROJECT / "examples" / "shop" / "service.py").read_text() if program.endswith(".py") else ""
    for name in (one.removeprefix("--") for one in [*options, "--orders", "--seed"] if one.startswith("--")):
        assert re.search(rf'"--{name}"|^ +{name}: {{ type', text, re.MULTILINE), name
