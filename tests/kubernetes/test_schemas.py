"""Every manifest is what the API takes: Kubernetes' own schemas of two versions, with no unknown
fields, and for the kinds of other projects the schemas that these publish (``crds/``)."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.kubernetes.rendered import SETS, documents, one

VERSIONS = "1.34", "1.37"
"""The oldest with resource.k8s.io/v1, and the newest."""
CRDS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "crds").iterdir()
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_what_is_rendered(name: str, version: str) -> None:
    for document in documents(name):
        if document["kind"] not in CRDS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("kind", CRDS)
def test_the_kinds_of_other_projects_are_as_those_publish_them(kind: str) -> None:
    (document,) = [d for d in documents("eight-h200") if d["kind"] == kind]
    assert document["apiVersion"] == CRDS[kind]["apiVersion"]
    jsonschema.validate(document, _closed(CRDS[kind]["schema"]))


def test_only_the_full_set_needs_kinds_of_other_projects() -> None:
    used = {name: {d["kind"] for d in documents(name)} & set(CRDS) for name in SETS}
    assert {name for name, kinds in used.items() if kinds} == {"eight-h200"}
    assert used["eight-h200"] == set(CRDS)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_field_is_found(version: str) -> None:
    wrong = copy.deepcopy(one("defaults", "Deployment"))
    wrong["spec"]["template"]["spec"]["initContainers"][2]["resources"]["claim"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="claim"):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_an_unknown_field_of_another_projects_kind_is_found() -> None:
    wrong = copy.deepcopy(one("eight-h200", "InferencePool"))
    wrong["spec"]["targetPortNumber"] = 8000
    with pytest.raises(jsonschema.ValidationError, match="targetPortNumber"):
        jsonschema.validate(wrong, _closed(CRDS["InferencePool"]["schema"]))


def _closed(schema: Any) -> Any:
    """The schema that refuses fields which it does not name; metadata is Kubernetes' own."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return dict(_closed_items(schema))


def _closed_items(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        yield key, _closed(value)
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        yield "additionalProperties", False
