"""The files of ``serve run`` and ``serve deploy``, by Ray's own schema."""

from pathlib import Path

import pytest
import yaml
from ray._common.utils import import_attr
from ray.serve.schema import ServeDeploySchema

import deploy.ray.application as application
from deploy.ray.router import ConversationRouter
from deploy.ray.scaling import NodesForLoad
from deploy.ray.settings import node_settings

FILES = sorted(Path(application.__file__).parent.glob("*.yaml"))


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def described(request: pytest.FixtureRequest) -> ServeDeploySchema:
    return ServeDeploySchema.model_validate(yaml.safe_load(request.param.read_text()))


def test_the_files_are_there() -> None:
    assert [path.name for path in FILES] == ["cpu-demo.yaml", "serve.yaml"]


def test_it_names_the_application_and_its_deployments(described: ServeDeploySchema) -> None:
    (app,) = described.applications
    assert import_attr(app.import_path) is application.build
    node_settings(app.args)
    ingress = application.build(app.args)
    nodes = ingress._bound_deployment.init_args[0]
    built = {each._bound_deployment.name for each in (ingress, nodes)}
    assert {deployment.name for deployment in app.deployments} == built == {"Node", "Ingress"}


def test_the_settings_are_those_of_baton_up(described: ServeDeploySchema) -> None:
    up = (Path(application.__file__).parent.parent / "up.py").read_text()
    (app,) = described.applications
    assert [name for name in app.args["settings"] if f'"{name}"' not in up] == []


def test_the_policy_and_the_router_are_what_ray_imports() -> None:
    (app,) = yaml.safe_load((FILES[-1]).read_text())["applications"]
    (policy,) = [each["autoscaling_config"]["policy"] for each in app["deployments"][:1]]
    assert import_attr(policy["policy_function"]) is NodesForLoad
    NodesForLoad(**policy["policy_kwargs"])
    assert import_attr(application.ROUTER) is ConversationRouter
