"""The Helm chart renders, for every feature, what Kubernetes and keyfence accept.

`make helm` fetches the real Helm and Kubernetes' own schemas; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_main import keyfence
from tests.clients.running import eventually
from tests.servers import PATIENCE_SECONDS, PROJECT, Certificates
from tools.chart_values import CHART, FILES

POLICY = PROJECT / "deploy" / "compose" / "policy.yaml"
FEATURES = tuple(sorted(path.name for path in CHART.glob("values-*.yaml")))
WITH_POLICY = ("--set-file", f"policy.files.shop\\.yaml={POLICY}")
COMPLETE = (*WITH_POLICY, "--set", "config.upstream=redis://redis:6379")
OLDEST = "1.29"  # Chart.yaml's kubeVersion
# A PodMonitor is the Prometheus operator's, so Kubernetes has no schema of it. These are the fields in use.
POD_MONITOR = {"selector", "jobLabel", "podMetricsEndpoints"}
ENDPOINT = {"port", "path", "interval"}

HELM = shutil.which(
    "helm", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
)
needs_helm = pytest.mark.skipif(HELM is None, reason="no Helm here: make helm")


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *map(str, words)], capture_output=True, text=True, check=False)


def template(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return helm("template", "shop", CHART, "--namespace", "redis", "--kube-version", f"v{OLDEST}.0", *words)


@cache
def rendered(feature: str) -> list[dict[str, Any]]:
    """Returns the objects that the chart makes of a file of values."""
    policy = () if feature == "values-existing-policy.yaml" else WITH_POLICY
    done = template("--values", CHART / feature, *policy)
    assert (done.returncode, done.stderr) == (0, "")
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(kind: str, feature: str) -> dict[str, Any]:
    [found] = [one for one in rendered(feature) if one["kind"] == kind]
    return found


def pod(feature: str) -> dict[str, Any]:
    found = of_kind("Deployment", feature)["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def container(feature: str, name: str = "keyfence") -> dict[str, Any]:
    of_pod = pod(feature)
    [found] = [
        one for one in [*of_pod.get("initContainers", ()), *of_pod["containers"]] if one["name"] == name
    ]
    assert isinstance(found, dict)
    return found


# -- the source of the values


@pytest.mark.parametrize("name", FILES)
def test_what_is_made_of_the_values_source_is_up_to_date(name: str) -> None:
    assert (CHART / name).read_text() == FILES[name](), "run python -m tools.chart_values"


def test_the_chart_s_version_is_the_package_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = re.search('^version = "(.*)"$', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    assert package is not None
    assert chart["version"] == chart["appVersion"] == package[1]


def test_every_value_is_used() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    templates = templates.replace("$redis.", "Values.networkPolicy.redis.")
    inside = {"image": r"\.Values\.image", "findings": r"\.Values\.findings"}

    def check(values: dict[str, Any], path: str) -> None:
        for key, value in values.items():
            full = f"{path}.{key}"
            used = re.search(rf"{re.escape(full)}\b", templates) or (
                path.removeprefix("Values.") in inside and re.search(rf"(?<=[ (])\.{key}\b", templates)
            )
            if isinstance(value, dict) and value and key not in {"config", "resources"}:
                check(value, full)
            else:
                assert used, full

    check(yaml.safe_load((CHART / "values.yaml").read_text()), "Values")


# -- what is rendered


@needs_helm
def test_helm_s_linter_finds_nothing() -> None:
    done = helm("lint", "--strict", CHART, *COMPLETE)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize("version", [OLDEST, "newest"])
def test_kubernetes_schemas_accept_what_is_rendered(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="no schemas here: make helm")
    # It reads a megabyte of definitions for each object.
    monkeypatch.setattr(kubernetes.utils, "schema_contents", cache(kubernetes.utils.schema_contents))
    version = kubernetes.latest_version() if version == "newest" else version
    different = {json.dumps(one) for feature in FEATURES for one in rendered(feature)}
    for one in map(json.loads, different):
        if one["kind"] != "PodMonitor":
            kubernetes.validate(one, version, strict=True)


@needs_helm
def test_the_pod_monitor_has_the_form_of_the_prometheus_operator_s() -> None:
    found = of_kind("PodMonitor", "values-monitoring.yaml")
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    assert found["spec"].keys() == POD_MONITOR
    assert all(endpoint.keys() == ENDPOINT for endpoint in found["spec"]["podMetricsEndpoints"])
    ports = {one["name"] for one in container("values-monitoring.yaml")["ports"]}
    assert {one["port"] for one in found["spec"]["podMetricsEndpoints"]} <= ports


@needs_helm
@pytest.mark.parametrize("feature", FEATURES)
def test_keyfence_accepts_the_rendered_configuration(
    feature: str, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are laid out as Kubernetes mounts them, with something in each Secret."""
    maps = {one["metadata"]["name"]: one["data"] for one in rendered(feature) if one["kind"] == "ConfigMap"}
    if feature == "values-existing-policy.yaml":
        maps["shop-policy"] = {"shop.yaml": POLICY.read_text()}
    volumes = {one["name"]: one for one in pod(feature)["volumes"]}
    root = tmp_path / "root"
    for mount in container(feature)["volumeMounts"]:
        volume = volumes[mount["name"]]
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True)
        for name, text in maps[volume["configMap"]["name"]].items() if "configMap" in volume else ():
            (folder / name).write_text(text.replace("/etc/keyfence", f"{root}/etc/keyfence"))
    config = root / "etc/keyfence/config/keyfence.yaml"
    in_secrets = {"ca.crt": certificates.ca, "tls.crt": certificates.certificate, "tls.key": certificates.key}
    for path in re.findall(rf"{root}/etc/keyfence/secrets/[-\w./]+", config.read_text()):
        assert Path(path).parent.is_dir(), f"no Secret is mounted for {path}"
        of_tls = in_secrets.get(Path(path).name)
        Path(path).write_text(of_tls.read_text() if of_tls else "0123456789abcdef0123\n")
    for one in container(feature).get("env", ()):
        monkeypatch.setenv(one["name"], "redis.example")
    code, out, err = keyfence("check", "--strict", config)
    if feature == "values-cloud-login.yaml" and find_spec("botocore") is None:
        assert out.count("error: ") == 1
        assert "keyfence[aws]" in out
        return
    assert (code, err) == (0, ""), out


@needs_helm
@pytest.mark.parametrize("feature", FEATURES)
def test_keyfence_has_no_more_rights_than_it_needs(feature: str) -> None:
    names = [one["name"] for one in [*pod(feature).get("initContainers", ()), *pod(feature)["containers"]]]
    for name in (one for one in names if one.startswith("keyfence")):
        rights = container(feature, name)["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert all("subPath" not in mount for mount in container(feature, name)["volumeMounts"])


# -- single features


@needs_helm
def test_listeners_are_ports_of_the_service_and_of_the_pods() -> None:
    ports = of_kind("Service", "values-enforce.yaml")["spec"]["ports"]
    assert [one["port"] for one in ports] == [7101, 7102]
    named = {one["name"]: one["containerPort"] for one in container("values-enforce.yaml")["ports"]}
    assert [named[one["targetPort"]] for one in ports] == [7101, 7102]
    assert named["metrics"] == 9465


@needs_helm
def test_only_keyfence_reaches_redis() -> None:
    policies = [one for one in rendered("values-network-policy.yaml") if one["kind"] == "NetworkPolicy"]
    [guard] = [one for one in policies if one["metadata"]["name"].endswith("-redis")]
    assert guard["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "redis"}
    keyfence_pods, redis_pods = guard["spec"]["ingress"]
    labels = of_kind("Deployment", "values-network-policy.yaml")["spec"]["selector"]["matchLabels"]
    assert keyfence_pods["from"][0]["podSelector"]["matchLabels"] == labels
    assert redis_pods["from"] == [{"podSelector": guard["spec"]["podSelector"]}]


@needs_helm
def test_a_sidecar_is_there_before_the_application_and_has_no_service() -> None:
    of_pod = pod("values-sidecar.yaml")
    assert [one["name"] for one in of_pod["initContainers"]] == ["keyfence", "keyfence-reload"]
    assert {one["restartPolicy"] for one in of_pod["initContainers"]} == {"Always"}
    assert [one["name"] for one in of_pod["containers"]] == ["storefront"]
    assert not any(one["kind"] == "Service" for one in rendered("values-sidecar.yaml"))


@needs_helm
def test_secrets_are_mounted_for_keyfence_alone_and_none_is_made() -> None:
    for feature in FEATURES:
        assert not any(one["kind"] == "Secret" for one in rendered(feature))
    secrets = [one for one in pod("values-secrets.yaml")["volumes"] if "secret" in one]
    assert {one["secret"]["secretName"] for one in secrets} == {"shop-redis", "shop-keyfence"}
    assert all(one["secret"]["defaultMode"] == 0o440 for one in secrets)


@needs_helm
def test_a_file_may_begin_with_an_indented_line(tmp_path: Path) -> None:
    text = "\n    # what this is\npolicy: shop\n"
    (tmp_path / "shop.yaml").write_text(text)
    files = (f"policy.files.shop\\.yaml={tmp_path}/shop.yaml", f"waivers={tmp_path}/shop.yaml")
    done = template(*("--set", "config.upstream=redis://redis"), *("--set-file", ",".join(files)))
    maps = [one["data"] for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "ConfigMap"]
    assert [one.get("shop.yaml", one.get("waivers.yaml")) for one in maps] == [text, text]


@needs_helm
def test_a_secret_may_have_every_name_that_kubernetes_allows() -> None:
    names = ["shop.tls", *(f"{'long-' * 12}{number}" for number in "12")]
    files = json.dumps([{"secret": name} for name in names])
    done = template(*COMPLETE, "--set-json", f"secretFiles={files}")
    [found] = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "Deployment"]
    of_pod = found["spec"]["template"]["spec"]
    volumes = {one["name"]: one["secret"]["secretName"] for one in of_pod["volumes"] if "secret" in one}
    assert list(volumes.values()) == names
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in volumes)
    for one in of_pod["containers"]:
        mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        assert [volumes[mounts[f"/etc/keyfence/secrets/{name}"]] for name in names] == names


@needs_helm
def test_a_changed_policy_restarts_pods_only_if_it_shall() -> None:
    def checksum(*words: str | Path) -> str:
        done = template(*COMPLETE, *words)
        [found] = re.findall("checksum/restart: ([0-9a-f]{64})", done.stdout)
        return str(found)

    policy, upstream = ("--set", "policy.files.more\\.yaml=x"), ("--set", "config.upstream=redis://other")
    assert checksum() == checksum(*policy) != checksum(*upstream)
    restart = ("--set", "reload=restart")
    assert checksum(*restart) != checksum(*restart, *policy)


@needs_helm
def test_no_network_policy_cuts_off_the_application_beside_a_sidecar() -> None:
    redis = ("--set", "networkPolicy.enabled=true,networkPolicy.redis.podSelector.app=redis")
    done = template("--values", CHART / "values-sidecar.yaml", *WITH_POLICY, *redis)
    found = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "NetworkPolicy"]
    assert [one["spec"]["podSelector"] for one in found] == [{"matchLabels": {"app": "redis"}}]


FAULTS = {
    "there is no policy": ("--set", "replicas=1"),
    "config.upstream is missing": WITH_POLICY,
    "policy.files and policy.existingConfigMap exclude each other": (
        *COMPLETE,
        "--set",
        "policy.existingConfigMap=x",
    ),
    '"shop.txt" is not the name of a policy\'s file': ("--set", "policy.files.shop\\.txt=x"),
    "config.listeners is empty": (*COMPLETE, "--set-json", "config.listeners=[]"),
    "no other pod reaches the listener 127.0.0.1:6380": (
        *COMPLETE,
        "--set-json",
        'config.listeners=[{"listen": "127.0.0.1:6380"}]',
    ),
    "config.metrics is none": (*COMPLETE, "--set", "config.metrics=none"),
    "reload: watch needs config.admin": (*COMPLETE, "--set", "config.admin=none"),
    "autoscaling needs resources.requests.cpu": (
        *COMPLETE,
        "--set",
        "autoscaling.enabled=true,resources.requests.cpu=null",
    ),
    "sidecar.containers is empty": (*COMPLETE, "--set", "form=sidecar"),
    "the application reaches the admin address of its sidecar": (
        *("--values", CHART / "values-sidecar.yaml", *WITH_POLICY),
        *("--set", "config.admin=127.0.0.1:9464"),
    ),
    "of a sidecar, networkPolicy protects Redis' pods alone": (
        *("--values", CHART / "values-sidecar.yaml", *WITH_POLICY),
        *("--set", "networkPolicy.enabled=true"),
    ),
    "several pods cannot share findings.existingClaim": (*COMPLETE, "--set", "findings.existingClaim=x"),
    # By the schema, keyfence's own included.
    "additional properties 'replica' not allowed": (*COMPLETE, "--set", "replica=3"),
    "additional properties 'listener' not allowed": (*COMPLETE, "--set-json", "config.listener=[]"),
    "at '/config/modes/0/mode': value must be one of 'observe', 'enforce', 'disabled'": (
        *COMPLETE,
        "--set-json",
        'config.modes=[{"mode": "enforced"}]',
    ),
}


@needs_helm
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_values_is_named(fault: str) -> None:
    done = template(*FAULTS[fault])
    assert done.returncode != 0
    assert fault in done.stderr


# -- the reload


@needs_helm
def test_the_reloader_reloads_once_at_the_start_and_at_each_change(tmp_path: Path) -> None:
    script = container("values-enforce.yaml", "keyfence-reload")["command"][2]
    root = tmp_path / "etc"
    for name in ("config", "policy"):
        (root / name).mkdir(parents=True)
        (root / name / "x.yaml").write_text("old")
    programs = tmp_path / "programs"
    programs.mkdir()
    # `sleep` is a step of the test's own clock. At the third the policy changes, and the fifth is the last.
    (programs / "sleep").write_text(
        f"""#!/bin/sh
echo "sleep $1" >>{tmp_path}/done
[ "$(grep -c sleep {tmp_path}/done)" = 3 ] && echo new >{root}/policy/x.yaml
[ "$(grep -c sleep {tmp_path}/done)" -lt 5 ]
"""
    )
    (programs / "keyfence").write_text(f'#!/bin/sh\necho "keyfence $*" >>{tmp_path}/done\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    script = script.replace("/etc/keyfence", str(root))
    subprocess.run(["sh", "-c", script], env={"PATH": f"{programs}:/usr/bin:/bin"}, check=False, timeout=60)
    reload = f"keyfence reload --config {root}/config/keyfence.yaml"
    said = (tmp_path / "done").read_text().splitlines()
    assert said == ["sleep 5", reload, "sleep 5", "sleep 5", reload, "sleep 5", "sleep 5"]


@needs_helm
def test_the_reloader_ends_at_once_with_its_pod() -> None:
    """The kernel keeps SIGTERM from the first process of a container, unless the process handles it."""
    script = container("values-enforce.yaml", "keyfence-reload")["command"][2]
    reloader = subprocess.Popen(["sh", "-c", script])
    try:
        eventually(lambda: _handles(reloader.pid, signal.SIGTERM), "it handles SIGTERM")
        reloader.terminate()
        assert reloader.wait(PATIENCE_SECONDS) == 0
    finally:
        reloader.kill()


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: proc_pid_status(5)."""
    [caught] = re.findall("^SigCgt:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_the_schema_is_one_of_json() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["config"]["$ref"] == "#/$defs/KeyfenceConfiguration"
    assert schema["additionalProperties"] is False
