"""Store the schemas of the kinds that are not Kubernetes' own, without their descriptions:

python -m tests.kubernetes.store_crds VERSION < the published CustomResourceDefinition

writes ``crds/KIND.json``: the schema of the API version that is stored, and where it is from.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).parent / "crds"


def without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if not (k == "description" and isinstance(v, str))}
    return {k: without_descriptions(v) for k, v in kept.items() if not k.startswith("x-kubernetes")}


if __name__ == "__main__":
    crd = yaml.safe_load(sys.stdin)
    (version,) = [v for v in crd["spec"]["versions"] if v["storage"]]
    kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
    schema = without_descriptions(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    document = {
        "from": f"{crd['metadata']['name']} of {sys.argv[1]}",
        "apiVersion": f"{group}/{version['name']}",
        "schema": schema,
    }
    (CRDS / f"{kind}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
