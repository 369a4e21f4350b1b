"""The values of the Helm chart in deploy/helm/keyfence: the one source of values.yaml and values.schema.json.

Usage: python -m tools.chart_values writes both files.

Rule: the name, the type, the default and the purpose of a value stand here, and only here. keyfence's own
configuration, under `config`, is checked by keyfence's own schema.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROJECT = Path(__file__).resolve().parent.parent
CHART = PROJECT / "deploy" / "helm" / "keyfence"
CONFIG_SCHEMA = PROJECT / "docs" / "schemas" / "config.json"
WIDTH = 100

HEAD = """\
# Made by `python -m tools.chart_values`; change it there. Each feature has a file values-NAME.yaml beside
# this one, and docs/kubernetes.md explains them.
"""

Objects = list[dict[str, Any]]  # of Kubernetes, which checks them itself
Mapping = dict[str, Any]
Labels = dict[str, str]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


def _about(text: str, default: Any = None, **more: Any) -> Any:
    if callable(default):
        return Field(default_factory=default, description=text, **more)
    return Field(default, description=text, **more)


class Image(_Model):
    repository: str = _about(
        "where the image is that `docker build` has made of the repository's Dockerfile", "keyfence"
    )
    tag: str = _about("its tag; the chart's appVersion if empty", "")
    digest: str = _about(
        "its digest, sha256:…, which wins over the tag", "", pattern="^(sha256:[0-9a-f]{64})?$"
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = _about("", "IfNotPresent")
    pull_secrets: list[str] = _about("names of existing Secrets for the registry", list)


class Policy(_Model):
    files: Labels = _about(
        "the policy's files by name, as `--set-file 'policy.files.shop\\.yaml=shop.yaml'` sets them", dict
    )
    existing_config_map: str = _about("a ConfigMap with the policy's files, in place of `files`", "")


class SecretFiles(_Model):
    secret: str = _about("the name of an existing Secret", ...)


class SecretVariable(_Model):
    name: str = _about("the variable", ..., pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    secret: str = _about("the name of an existing Secret", ...)
    key: str = _about("the key in it", ...)


class Sidecar(_Model):
    containers: Objects = _about("the application's containers, which use keyfence at 127.0.0.1", list)
    volumes: Objects = _about("the volumes of these containers", list)
    pod_labels: Labels = _about("labels of the pod, beside the chart's", dict)


class Service(_Model):
    type: Literal["ClusterIP", "LoadBalancer", "NodePort"] = _about("", "ClusterIP")
    annotations: Labels = _about("", dict)


class ServiceAccount(_Model):
    create: bool = _about(
        "make one, for a cloud's IAM for example; without, the namespace's default one", False
    )
    name: str = _about("its name, or that of an existing one", "")
    annotations: Labels = _about("", dict)


class Findings(_Model):
    size: str = _about("of the volume for findings, while no claim is named; it ends with the pod", "256Mi")
    existing_claim: str = _about(
        "a PersistentVolumeClaim for findings; several replicas need PostgreSQL instead", ""
    )


class PodMonitor(_Model):
    enabled: bool = _about("make one; it needs the Prometheus operator", False)
    labels: Labels = _about("what your Prometheus selects monitors by", dict)
    interval: str = _about("", "30s", pattern="^([0-9]+(ms|[smh]))+$")


class RedisPeers(_Model):
    port: int = _about("the port of Redis", 6379, ge=1, le=65535)
    pod_selector: Labels = _about("labels of Redis' pods: then only keyfence's pods reach them", dict)
    namespace: str = _about("the namespace of Redis' pods; the release's if empty", "")
    cidrs: list[str] = _about("networks of a Redis outside of the cluster", list)


class NetworkPolicy(_Model):
    enabled: bool = _about(
        "make them: who reaches keyfence, what keyfence reaches, and who reaches Redis; of a sidecar, the "
        "last one alone",
        False,
    )
    redis: RedisPeers = _about("the Redis behind keyfence", RedisPeers)
    clients: Objects = _about(
        "who reaches the listeners: peers of a NetworkPolicy; empty: every pod of the namespace", list
    )
    monitoring: Objects = _about(
        "who reaches the metrics port: peers of a NetworkPolicy; empty: nobody", list
    )
    egress: Objects = _about("more rules for what keyfence reaches: a PostgreSQL, a webhook", list)


class Budget(_Model):
    enabled: bool = _about("make one", False)
    max_unavailable: int | str = _about("pods that may be missing at the same time", 1)


class Autoscaling(_Model):
    enabled: bool = _about(
        "make a HorizontalPodAutoscaler, in place of `replicas`; it needs resources.requests.cpu", False
    )
    min_replicas: int = _about("", 2, ge=1)
    max_replicas: int = _about("", 6, ge=1)
    cpu: int = _about("percent of the requested CPU", 70, ge=1)


class Values(_Model):
    form: Literal["gateway", "sidecar"] = _about(
        "gateway: keyfence has pods and a Service of its own. sidecar: a pod runs `sidecar.containers` with "
        "keyfence beside them",
        "gateway",
    )
    replicas: int = _about("pods", 2, ge=0)
    image: Image = _about("", Image)
    config: Mapping = _about(
        "keyfence's configuration, as docs/configuration.md has it, but for `policy` and `waivers`. "
        "`upstream` names your Redis and has no default. The admin address is 127.0.0.1:9464, which "
        "`kubectl port-forward` reaches; probes and Prometheus reach the metrics address",
        lambda: {
            "listeners": [{"listen": ":6380"}],
            "metrics": ":9465",
            "modes": [{"mode": "observe"}],
        },
    )
    policy: Policy = _about("", Policy)
    waivers: str = _about("the text of a file of waivers", "")
    reload: Literal["watch", "restart"] = _about(
        "what a change of policy, waivers or configuration does. watch: keyfence reloads within a minute "
        "or two, and clients stay connected; what a reload cannot change restarts the pods. restart: every "
        "change restarts the pods, one after the other",
        "watch",
    )
    secret_files: list[SecretFiles] = _about(
        "existing Secrets, each mounted at /etc/keyfence/secrets/NAME; the configuration has "
        "`file:/etc/keyfence/secrets/NAME/KEY`",
        list,
    )
    secret_variables: list[SecretVariable] = _about(
        "variables from existing Secrets; the configuration has `${NAME}`", list
    )
    sidecar: Sidecar = _about("the application, in the form of a sidecar", Sidecar)
    service: Service = _about("", Service)
    service_account: ServiceAccount = _about("", ServiceAccount)
    findings: Findings = _about(
        "where findings are kept, unless `config.findings` names a PostgreSQL", Findings
    )
    pod_monitor: PodMonitor = _about("", PodMonitor)
    network_policy: NetworkPolicy = _about("", NetworkPolicy)
    pod_disruption_budget: Budget = _about("", Budget)
    autoscaling: Autoscaling = _about("", Autoscaling)
    resources: Mapping = _about(
        "of keyfence's container",
        lambda: {"requests": {"cpu": "250m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
    )
    drain_delay_seconds: int = _about(
        "for how long a pod that ends goes on to accept clients, until every node knows that it ends", 5, ge=0
    )
    termination_grace_period_seconds: int = _about(
        "longer than drainDelaySeconds and `config.drain` together", 30, ge=1
    )
    pod_annotations: Labels = _about("", dict)
    pod_labels: Labels = _about("", dict)
    node_selector: Labels = _about("", dict)
    tolerations: Objects = _about("", list)
    affinity: Mapping = _about("", dict)
    name_override: str = _about("in place of the chart's name", "", max_length=40)
    # Helm hands these to every chart that is another one's dependency.
    global_: Mapping = Field(default_factory=dict, alias="global", description="")


def _lines(model: BaseModel, indent: str = "") -> list[str]:
    lines: list[str] = []
    for name, field in type(model).model_fields.items():
        if name == "global_":
            continue
        key, value = str(field.alias), getattr(model, name)
        if field.description:
            lines += textwrap.wrap(
                field.description, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        if isinstance(value, BaseModel):
            lines += [f"{indent}{key}:", *_lines(value, f"{indent}  ")]
        elif isinstance(value, dict) and value:
            text = yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=WIDTH)
            lines += [f"{indent}{key}:", *textwrap.indent(text, f"{indent}  ").splitlines()]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")
        if not indent:
            lines.append("")
    return lines


def values_yaml() -> str:
    return HEAD + "\n" + "\n".join(_lines(Values())).rstrip() + "\n"


def values_schema() -> str:
    """Returns the schema of the values, with keyfence's own schema for the configuration in it."""
    schema = Values.model_json_schema(by_alias=True)
    of_config = json.loads(CONFIG_SCHEMA.read_text())
    definitions = of_config.pop("$defs")
    overlap = definitions.keys() & schema["$defs"].keys()
    assert not overlap, overlap
    of_config.pop("$schema")
    for name in ("policy", "waivers"):  # the chart sets them
        of_config["properties"].pop(name)
    about = schema["properties"]["config"]["description"]
    schema["properties"]["config"] = {"$ref": "#/$defs/KeyfenceConfiguration", "description": about}
    schema["$defs"] |= definitions | {"KeyfenceConfiguration": of_config}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Values of keyfence's chart"}
    return json.dumps(head | {key: schema[key] for key in schema if key != "title"}, indent=1) + "\n"


FILES = {"values.yaml": values_yaml, "values.schema.json": values_schema}


def main() -> None:
    for name, made in FILES.items():
        (CHART / name).write_text(made())


if __name__ == "__main__":
    main()
