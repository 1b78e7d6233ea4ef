"""The Helm chart: valid for Kubernetes, with the settings of deploy/, and a broker starts from it.

Nothing here runs a container. Helm renders the chart, the result is compared with Kubernetes' own
schemas, and the rendered environment and commands start a broker of this tree.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.integration.certificates import Certificates
from tests.integration.clients import TIMEOUT_S

from headrace.administration.stored_users import open_users
from headrace.broker.settings.table import SETTINGS
from headrace.dev_cluster.settings import sample
from headrace.runtime.scram import HASHES, ScramCredential

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "headrace"
VERSIONS = ("1.28", "1.37")
CLUSTER = {"cluster": {"enabled": True}}
SECURE = {"tls": {"secretName": "tls"}, "admin": {"secretName": "admin"}}
VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "alone-secure": SECURE,
    "cluster": CLUSTER,
    "cluster-secure": {**CLUSTER, **SECURE, "imagePullSecrets": [{"name": "pull"}]},
    "cluster-elsewhere": {"cluster": {"enabled": True, "zookeeper": "zk1:2181,zk2:2181"}},
    "small": {**CLUSTER, "replicas": 1, "zookeeper": {"replicas": 1}},
}
OWN = {
    "metadataServiceUri", "journalDirectories", "ledgerDirectories", "useHostNameAsBookieID",
    "dataDir",
}  # fmt: skip
"""What differs from deploy/: where it is, and how it is called."""


@pytest.fixture(scope="session")
def helm() -> str:
    """Its path, where it was built: that takes longer than a test may."""
    found = max((ROOT / ".cache" / "bin").glob("helm-v*"), default=None)
    if found is None:
        pytest.skip("NO HELM: sh scripts/go-tool.sh helm builds it (some minutes, by Go)")
    return str(found)


def run_helm(helm: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [
        helm,
        "template",
        "queue",
        str(CHART),
        "--namespace",
        "prod",
        "--kube-version",
        "1.28",
        "--values",
        "-",
    ]
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60
    )


def rendered(helm: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    done = run_helm(helm, values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] in kinds}


@pytest.mark.parametrize("name", VARIANTS)
def test_rendered_objects_are_valid_and_refer_to_existing_objects(helm, name) -> None:
    objects = rendered(helm, VARIANTS[name])
    for one in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)
    services, sets = of_kind(objects, "Service"), of_kind(objects, "StatefulSet")
    pods = {**sets, **of_kind(objects, "Deployment")}
    labels = [one["spec"]["template"]["metadata"]["labels"].items() for one in pods.values()]
    for service in services.values():
        selector = service["spec"]["selector"].items()
        assert sum(selector <= one for one in labels) == 1, "of the pods of one set"
    for one in sets.values():
        assert one["spec"]["serviceName"] in services
    for one in pods.values():
        template = one["spec"]["template"]["spec"]
        assert template["securityContext"]["runAsNonRoot"]
        claims = [c["metadata"]["name"] for c in one["spec"].get("volumeClaimTemplates", [])]
        volumes = {*claims, *(volume["name"] for volume in template.get("volumes", []))}
        for volume in template.get("volumes", []):
            if "configMap" in volume:
                assert volume["configMap"]["name"] in of_kind(objects, "ConfigMap")
        for container in [*template["containers"], *template.get("initContainers", [])]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert not container["securityContext"]["allowPrivilegeEscalation"]
    # each address names a pod of a set, and its service
    for host in re.findall(r"[\w-]+\.[\w-]+(?=:(?:2181|2888))", json.dumps(objects)):
        pod, service = host.split(".")
        assert service in services
        assert int(pod.removeprefix(f"{service}-")) < sets[service]["spec"]["replicas"]


def test_servers_have_the_settings_that_deploy_ships(helm) -> None:
    objects = rendered(helm, CLUSTER)
    files = {k: v for one in of_kind(objects, "ConfigMap").values() for k, v in one["data"].items()}
    for name, text in sorted(files.items()):
        lines = [line for line in text.splitlines() if line and line[0] != "#"]
        settings = dict(line.split("=", 1) for line in lines)
        shipped = sample(name)
        for key in settings.keys() | shipped.keys():
            if key not in OWN and not key.startswith("server."):
                assert settings.get(key) == shipped.get(key), key
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        == (yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])
    )


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 0},
        {"replica": 3},
        {"storage": {"size": "much"}},
        {"settings": {"HEADRACE_KAFKA": "0.0.0.0:9092"}},
        {"settings": {"PATH": "/bin"}},
        {"cluster": {"enabled": True, "zookeeper": "zk1"}},
        {"zookeeper": {"replicas": 2}},
        {"bookkeeper": {"replicas": 2}},
        {"admin": {"user": "a b"}},
    ],
    ids=json.dumps,
)
def test_a_value_that_cannot_be_is_refused(helm, values) -> None:
    done = run_helm(helm, values)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr


def test_variables_set_by_the_chart_are_refused_as_settings() -> None:
    """Of two variables of one name, Kubernetes silently takes the later one."""
    template = (CHART / "templates" / "broker.yaml").read_text()
    own = set(re.findall(r"name: (HEADRACE_\w+)", template))
    schema = json.loads((CHART / "values.schema.json").read_text())
    refused = schema["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert own
    assert own <= set(refused)


def environment(container: dict[str, Any], secrets: dict[str, str]) -> dict[str, str]:
    """As the kubelet makes it."""
    pod = {"metadata.name": "queue-0", "metadata.namespace": "prod"}
    found: dict[str, str] = {}
    for one in container["env"]:
        if "value" in one:
            text = one["value"]
            for name, value in found.items():
                text = text.replace(f"$({name})", value)
        elif "fieldRef" in one["valueFrom"]:
            text = pod[one["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            text = secrets[one["valueFrom"]["secretKeyRef"]["key"]]
        found[one["name"]] = text
    return found


async def credentials(data_dir: Path) -> list[ScramCredential | None]:
    async with open_users(data_dir) as users:
        return [users.credential("admin", mechanism) for mechanism in HASHES]


def test_a_broker_starts_with_tls_and_its_first_user_from_the_environment(helm, tmp_path) -> None:
    from confluent_kafka.admin import AdminClient

    certificates = Certificates(tmp_path)
    pem = certificates.broker.read_text()
    blocks = re.findall(r"-----BEGIN.*?-----END [^-]+-----\n", pem, re.DOTALL)
    secrets = {
        "tls.key": "".join(one for one in blocks if "PRIVATE KEY" in one),
        "tls.crt": "".join(one for one in blocks if "CERTIFICATE" in one),
        "ca.crt": certificates.ca.read_text(),
    }
    given_settings = {
        "HEADRACE_LOG_RETENTION_MS": 1234567,
        "HEADRACE_AUTHORIZER": "acl",
        "HEADRACE_AUTO_CREATE_TOPICS": False,
        "HEADRACE_LOG_CLEANER_MIN_CLEANABLE_RATIO": 0.25,
    }
    settings = {"settings": given_settings}
    objects = rendered(helm, {**SECURE, **settings})
    template = of_kind(objects, "StatefulSet")["queue"]["spec"]["template"]["spec"]
    (broker,), (first,) = template["containers"], template["initContainers"]
    given = environment(broker, secrets)
    for name in given:
        assert not name.startswith("HEADRACE_") or any(
            one.variable == name for one in SETTINGS.values()
        ), name
    for name, text in zip(given_settings, ("1234567", "acl", "false", "0.25"), strict=True):
        assert given[name] == text
    assert given["HEADRACE_ADVERTISE"] == "SASL_SSL://queue-0.queue-brokers.prod.svc:9092"
    # what is of the container alone: addresses, paths, programs
    for name in ("HEADRACE_KAFKA", "HEADRACE_HTTP", "HEADRACE_ADMIN_ADDRESS"):
        given[name] = re.sub(r"[\d.]+:\d+$", "127.0.0.1:0", given[name])
    del given["HEADRACE_ADVERTISE"]
    (tmp_path / "password").write_text("s3cret-enough")
    data = tmp_path / "data"
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    script = first["args"][0].replace("/etc/headrace/admin", str(tmp_path))
    script = script.replace("/data", str(data))
    stored = []
    for _start in range(2):
        done = subprocess.run(
            [*first["command"], script],
            env={**os.environ, "PATH": path, **environment(first, secrets)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        stored.append(asyncio.run(credentials(data)))
    assert stored[0] == stored[1], "a restart closes no connections"
    (tmp_path / "password").rename(tmp_path / "elsewhere")
    done = subprocess.run(
        [*first["command"], script],
        env={**os.environ, "PATH": path, **environment(first, secrets)},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode != 0
    assert "exists" not in done.stderr, "only an absent user is added"
    command = [sys.executable, "-m", "headrace.cli.main", *broker["args"], "--json"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **given, "HEADRACE_DATA_DIR": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, process.communicate(timeout=TIMEOUT_S)[1][-2000:]
        client = {
            "bootstrap.servers": json.loads(ready)["kafka"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(certificates.ca),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "s3cret-enough",
        }
        assert AdminClient(client).list_topics(timeout=30).brokers
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
