"""The manifests of deploy/: Kubernetes' schema allows them, and their parts fit together."""

import copy
import os
import pathlib
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")))
NETSUM = pathlib.Path(os.environ.get("NETSUM_BUILD", ROOT / "build/release")) / "tools/netsum/netsum"
# The oldest and the newest that are widely in use.
VERSIONS = ("1.28", kubernetes_validate.latest_version())


def manifest(kind):
    (found,) = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def pod_of(kind):
    return manifest(kind)["spec"]["template"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_allows_them(version):
    for one in MANIFESTS:
        kubernetes_validate.validate(one, version, strict=True)
        broken = copy.deepcopy(one)
        broken["spec"]["selektor"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, version, strict=True)


def test_selectors_find_their_pods():
    deployment, service, job = manifest("Deployment"), manifest("Service"), manifest("Job")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod_of("Deployment")["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod_of("Job")["metadata"]["labels"].items()
    assert pod_of("Job")["spec"]["subdomain"] == service["metadata"]["name"]
    (rule,) = pod_of("Job")["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= pod_of("Job")["metadata"]["labels"].items()
    (worker,) = pod_of("Job")["spec"]["containers"]
    (command,) = worker["args"]
    assert f"--nnodes {job['spec']['completions']} " in command
    assert f"--master-addr {job['metadata']['name']}-0.{service['metadata']['name']} " in command
    assert job["spec"]["completions"] == job["spec"]["parallelism"], "all ranks must run at the same time"


def test_the_aggregator_is_what_the_ranks_are_told():
    (aggregator,), (worker,) = pod_of("Deployment")["spec"]["containers"], pod_of("Job")["spec"]["containers"]
    (variable,) = worker["env"]
    assert variable["name"] == "NETSUM_AGGREGATOR"
    flags = dict(zip(aggregator["args"][::2], aggregator["args"][1::2], strict=True))
    assert flags["--listen"] == variable["value"]
    ports = {port["name"]: port["containerPort"] for port in aggregator["ports"]}
    for name, flag in (("control", "--listen"), ("metrics", "--metrics")):
        assert flags[flag].endswith(f":{ports[name]}")
    for probe in ("readinessProbe", "livenessProbe"):
        assert aggregator[probe]["httpGet"]["port"] in ports
    drain_s = int(flags["--drain-timeout"].removesuffix("s"))
    assert pod_of("Deployment")["spec"]["terminationGracePeriodSeconds"] > drain_s


def test_the_command_takes_the_flags():
    """Up to the address of another machine, which the manifest names."""
    if shutil.which(NETSUM) is None:
        pytest.skip(f"there is no {NETSUM}")
    (container,) = pod_of("Deployment")["spec"]["containers"]
    arguments = [part.replace("10.0.0.9", "192.0.2.1") for part in (*container["command"], *container["args"])]
    assert arguments[0] == "netsum"
    run = subprocess.run([NETSUM, *arguments[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    assert "192.0.2.1" in run.stderr
    assert "no such address" in run.stderr
