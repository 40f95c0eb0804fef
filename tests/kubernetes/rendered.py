"""The manifests of deploy/kubernetes, rendered by kubectl's own Kustomize."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
WORKERS = {
    "defaults": {"prefill": 2, "decode": 6},
    "eight-gpus-by-plugin": {"prefill": 2, "decode": 6},
    "eight-h200": {"prefill": 2, "decode": 6},
    "one-gpu": {"colocated": 1},
    "cpu-demo": {"prefill": 1, "decode": 1},
}
"""Workers of each role, by the folder that is applied."""
SETS = tuple(WORKERS)

Document = dict[str, Any]


@cache
def rendered(name: str) -> str:
    """What ``kubectl apply -k`` of the set would send."""
    return kustomized(MANIFESTS / name)


def kustomized(folder: Path) -> str:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@cache
def documents(name: str) -> tuple[Document, ...]:
    return tuple(yaml.safe_load_all(rendered(name)))


def one(name: str, kind: str, called: str = "baton") -> Document:
    (found,) = [d for d in documents(name) if (d["kind"], d["metadata"]["name"]) == (kind, called)]
    return found


def pod(name: str) -> Document:
    """The spec of Baton's pod."""
    spec: Document = one(name, "Deployment")["spec"]["template"]["spec"]
    return spec


def containers(name: str) -> dict[str, Document]:
    """In the order in which they start."""
    spec = pod(name)
    return {c["name"]: c for c in (*spec["initContainers"], *spec["containers"])}


def workers(name: str) -> dict[str, Document]:
    return {n: c for n, c in containers(name).items() if role(n) in WORKERS[name]}


def role(container: str) -> str:
    """Of ``decode-3``: decode."""
    return container.rpartition("-")[0]


def environment(name: str, container: str) -> dict[str, str]:
    """What Kubernetes sets; a value from a Secret is ``secret:KEY``."""
    found: dict[str, str] = {}
    spec = containers(name)[container]
    for source in spec.get("envFrom", []):
        found |= one(name, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in spec.get("env", []):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            key = variable["valueFrom"]["secretKeyRef"]
            assert key["name"] == "baton"
            found[variable["name"]] = f"secret:{key['key']}"
    return found
