"""The kustomization.yaml that docs/many-nodes.md gives as an example does what it says."""

import os
import re
from pathlib import Path

import yaml

from tests.kubernetes.rendered import MANIFESTS, ROOT, kustomized


def test_the_examples_images_and_settings_reach_every_container(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "many-nodes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "kind: Kustomization" in block]
    here = os.path.relpath(MANIFESTS, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(example.replace("deploy/kubernetes", here))
    found = list(yaml.safe_load_all(kustomized(tmp_path)))
    (deployment,) = [d for d in found if d["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    images = {c["image"] for c in (*spec["initContainers"], *spec["containers"])}
    assert images == {
        "registry.example/baton-coordinator:0.1.0",
        "registry.example/baton-worker:0.1.0-cuda",
        "redis:7.4-alpine",
    }
    settings = {d["metadata"]["name"]: d["data"] for d in found if d["kind"] == "ConfigMap"}
    for container in spec["initContainers"]:
        for source in container.get("envFrom", []):
            assert source["configMapRef"]["name"] in settings
    (workers,) = [v for k, v in settings.items() if k.startswith("baton-workers-")]
    assert (workers["BATON_QUANTIZE"], workers["BATON_HOST_WORKERS"]) == ("fp8", "8")
