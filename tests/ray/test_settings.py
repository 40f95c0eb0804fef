"""The arguments of the application."""

import pytest

from deploy.ray.settings import NodeSettings, node_settings


def test_the_values_of_yaml_become_settings_of_the_environment() -> None:
    settings = {"BATON_PREFIX_CACHE": False, "BATON_WORKERS": 2, "BATON_MODEL": "/models/x"}
    assert node_settings({"settings": settings, "port": 8100}) == NodeSettings(
        settings={"BATON_PREFIX_CACHE": "off", "BATON_WORKERS": "2", "BATON_MODEL": "/models/x"},
        port=8100,
    )


def test_all_arguments_may_be_left_out() -> None:
    assert node_settings({}) == NodeSettings()
    assert node_settings({"settings": None}) == NodeSettings()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"portt": 1}, "^portt: no such argument; there are drain_s, port, settings"),
        ({"port": "8100"}, "^port: must be a number"),
        ({"port": True}, "^port: must be a number"),
        ({"port": 70000}, "^port: 70000"),
        ({"drain_s": float("inf")}, "^drain_s: must be above 0"),
        ({"unready_s": 0}, "^unready_s: must be above 0"),
        ({"settings": ["BATON_MODEL"]}, "^settings: must be a map"),
        ({"settings": {"MODEL": "x"}}, "^settings: MODEL is no setting of Baton"),
        ({"settings": {"BATON_PORT": 1}}, "^settings: BATON_PORT cannot be set here: it is `port`"),
        ({"settings": {"BATON_HOST": "::"}}, "^settings: BATON_HOST cannot be set here"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        node_settings(arguments)
