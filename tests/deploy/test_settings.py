"""What ``baton up`` makes of what it is told."""

import os
from pathlib import Path

import pytest

from deploy import gpus
from deploy.ports import base_url, claim_port
from deploy.services import services
from deploy.settings import resolve


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("num_gpus", "asked", "expected"),
    [
        (0, {}, ("cpu", 1, 1)),
        (0, {"decode": 3}, ("cpu", 1, 3)),
        (2, {}, ("cuda", 1, 1)),
        (3, {}, ("cuda", 1, 2)),
        (4, {}, ("cuda", 1, 3)),
        (6, {}, ("cuda", 2, 4)),
        (8, {}, ("cuda", 2, 6)),
        (8, {"prefill": 3}, ("cuda", 3, 5)),
        (8, {"decode": 2}, ("cuda", 6, 2)),
        (8, {"prefill": 1, "decode": 1}, ("cuda", 1, 1)),
        (8, {"device": "cpu"}, ("cpu", 1, 1)),
        (1, {"gpu_share": 2}, ("cuda", 1, 1)),
        (1, {"gpu_share": 4, "prefill": 2}, ("cuda", 2, 2)),
        (2, {"gpu_share": 2}, ("cuda", 1, 3)),
        (0, {"gpu_share": 2}, ("cpu", 1, 1)),
    ],
)
def test_pools_fit_the_machine(checkpoint, num_gpus, asked, expected):
    settings = resolve(num_gpus=num_gpus, model=checkpoint, **asked)
    assert (settings.device, settings.num_prefill, settings.num_decode) == expected
    assert settings.num_colocated == 0
    assert settings.pools == f"{expected[1]} prefill, {expected[2]} decode"


@pytest.mark.parametrize(
    ("num_gpus", "asked", "expected"),
    [
        (0, {}, "fixed"),
        (1, {}, "fixed"),
        (1, {"gpu_share": 2}, "fixed"),
        (2, {}, "auto"),
        (8, {"prefill": 3}, "auto"),
        (8, {"pools": "fixed"}, "fixed"),
        (8, {"pools": "manual"}, "manual"),
        (8, {"device": "cpu"}, "fixed"),
        (8, {"role": "colocated"}, "fixed"),
    ],
)
def test_pools_follow_the_load_on_several_gpus(checkpoint, num_gpus, asked, expected):
    assert resolve(num_gpus=num_gpus, model=checkpoint, **asked).pools_mode == expected


@pytest.mark.parametrize(
    ("num_gpus", "asked", "expected"),
    [
        (1, {}, ("cuda", 1)),
        (0, {"role": "colocated"}, ("cpu", 1)),
        (0, {"role": "colocated", "workers": 3}, ("cpu", 3)),
        (4, {"role": "colocated"}, ("cuda", 4)),
        (4, {"role": "colocated", "workers": 2}, ("cuda", 2)),
        (4, {"role": "colocated", "device": "cpu"}, ("cpu", 1)),
    ],
)
def test_colocated_workers_fit_the_machine(checkpoint, num_gpus, asked, expected):
    settings = resolve(num_gpus=num_gpus, model=checkpoint, **asked)
    assert (settings.device, settings.num_colocated) == expected
    assert (settings.num_prefill, settings.num_decode) == (0, 0)
    assert settings.pools == f"{expected[1]} colocated"


@pytest.mark.parametrize(
    ("setting", "num_gpus", "asked"),
    [
        ("--workers", 0, {"workers": 2}),
        ("--workers", 4, {"role": "split", "workers": 2}),
        ("--workers", 0, {"role": "colocated", "workers": 0}),
        ("--workers", 4, {"role": "colocated", "workers": 5}),
        ("--prefill", 0, {"role": "colocated", "prefill": 1}),
        ("--decode", 4, {"role": "colocated", "decode": 2}),
        ("--role", 1, {"prefill": 1}),
        ("--role", 1, {"prefill": 1, "decode": 1}),
        ("--gpu-share", 1, {"gpu_share": 0}),
        ("--port", 0, {"port": 70000}),
        ("--host", 0, {"host": ""}),
        ("--drain-timeout", 0, {"drain_timeout_s": 0}),
        ("--drain-timeout", 0, {"drain_timeout_s": float("nan")}),
        ("--spread", 0, {"spread": "on"}),
        ("--host-cache", 0, {"host_cache_gb": -1.0}),
        ("--host-cache", 0, {"host_cache_gb": float("nan")}),
        ("--redis-url", 0, {"redis_url": "http://:secret@there"}),
        ("--served-model-name", 0, {"served_model_name": ""}),
        ("--model", 0, {"model": Path("/nowhere")}),
        ("--model", 0, {"model": Path(__file__).parent}),
        ("--device", 0, {"device": "cuda"}),
        ("--overlap", 0, {"overlap": "on"}),
        ("--role", 1, {"role": "split"}),
        ("--prefill", 0, {"prefill": 0}),
        ("--decode", 0, {"decode": -1}),
        ("--prefill", 8, {"prefill": 4, "decode": 5}),
        ("--prefill", 8, {"decode": 8}),
    ],
)
def test_complaints_name_their_setting(checkpoint, setting, num_gpus, asked):
    with pytest.raises(ValueError, match=f"^{setting}") as told:
        resolve(num_gpus=num_gpus, **{"model": checkpoint, **asked})
    assert "secret" not in str(told.value)


def test_a_model_is_served_under_its_folders_name_by_default(checkpoint):
    assert resolve(num_gpus=0, model=checkpoint).served_model_name == "some-model"
    named = resolve(num_gpus=0, model=checkpoint, served_model_name="it")
    assert named.served_model_name == "it"


def test_services_get_their_settings_by_the_environment_alone(checkpoint):
    settings = resolve(
        num_gpus=0,
        model=checkpoint,
        decode=2,
        served_model_name="it",
        redis_url="redis://:secret@there",
        quantize="fp8",
        speculate="2",
        spread="48",
        overlap="off",
        prefix_cache=False,
        host_cache_gb=1.5,
    )
    planned = services(
        settings,
        port=8123,
        listen_fd=9,
        run_dir=Path("/run/x"),
        inherited={"BATON_NUM_PAGES": "64", "BATON_MODEL": "overridden", "PYTHONPATH": "/mine"},
    )
    coordinator, prefill, *decode = planned
    assert [one.name for one in planned] == ["coordinator", "prefill-1", "decode-1", "decode-2"]
    assert [one.argv[1:] for one in planned[:3]] == [
        ("-m", "coordinator"),
        ("-m", "prefill"),
        ("-m", "decode"),
    ]
    assert coordinator.env["BATON_BIND"] == prefill.env["BATON_COORDINATOR"]
    assert coordinator.env["BATON_BIND"] == "ipc:///run/x/coordinator.sock"
    assert (coordinator.env["BATON_HOST"], coordinator.env["BATON_PORT"]) == ("127.0.0.1", "8123")
    for one in planned:
        assert one.env["BATON_REDIS_URL"] == "redis://:secret@there"
        assert one.env["BATON_MODEL"] == str(checkpoint)
        assert one.env["BATON_SERVICE_NAME"] == one.name
        assert one.env["BATON_NUM_PAGES"] == "64"
        assert (one.env["BATON_QUANTIZE"], one.env["BATON_SPECULATE"]) == ("fp8", "2")
        assert one.env["BATON_SPREAD"] == "48"
        assert "BATON_DRAFT_ACCEPTANCE" not in one.env
        assert (one.env["BATON_OVERLAP"], one.env["BATON_PREFIX_CACHE"]) == ("off", "off")
        assert one.env["BATON_HOST_CACHE_GB"] == "1.5"
        assert one.env["PYTHONPATH"].startswith("/mine:")
    assert int(decode[0].env["BATON_THREADS"]) >= 1


@pytest.mark.parametrize(
    ("device", "inherited", "expected"),
    [
        ("cpu", {}, "PASSIVE"),
        ("cpu", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ("cuda", {}, None),
    ],
)
def test_threads_of_workers_on_a_cpu_do_not_spin(checkpoint, device, inherited, expected):
    settings = resolve(num_gpus=1, model=checkpoint, device=device, role="colocated", workers=1)
    *_, coordinator, worker = services(
        settings, port=1, run_dir=Path("/run/x"), inherited=inherited
    )
    assert worker.env.get("OMP_WAIT_POLICY") == expected
    assert coordinator.env.get("OMP_WAIT_POLICY") == inherited.get("OMP_WAIT_POLICY")


def test_a_lone_worker_has_nobody_to_spread_steps_over(checkpoint):
    for number, expected in ((1, "off"), (2, "auto")):
        settings = resolve(num_gpus=2, model=checkpoint, role="colocated", workers=number)
        *_, worker = services(settings, port=1, run_dir=Path("/run/x"), inherited={})
        assert worker.env["BATON_SPREAD"] == expected


def test_only_the_coordinator_gets_the_password_of_a_given_redis(checkpoint):
    inherited = {"BATON_REDIS_PASSWORD": "p", "BATON_REDIS_PASSWORD_FILE": "f"}
    for url, expected in ((None, {}), ("redis://there", inherited)):
        settings = resolve(num_gpus=0, model=checkpoint, redis_url=url)
        planned = services(settings, port=1, run_dir=Path("/run/x"), inherited=inherited)
        for service in planned:
            found = {name: service.env[name] for name in inherited.keys() & service.env.keys()}
            assert found == (expected if service.is_coordinator else {})


def told(checkpoint, inherited):
    settings = resolve(num_gpus=0, model=checkpoint, redis_url="redis://there")
    return services(settings, port=1, listen_fd=9, run_dir=Path("/run/x"), inherited=inherited)


def test_redis_is_started_unless_one_is_given(checkpoint):
    settings = resolve(num_gpus=0, model=checkpoint)
    inherited = {"PATH": os.environ["PATH"], "BATON_API_KEYS": "a:key"}
    redis, *others = services(settings, port=1, run_dir=Path("/run/x"), inherited=inherited)
    assert (redis.name, "/run/x/redis.sock" in redis.argv) == ("redis", True)
    assert not any(name.startswith("BATON_") for name in redis.env)
    assert {one.env["BATON_REDIS_URL"] for one in others} == {"unix:///run/x/redis.sock"}


def test_every_run_has_a_channel_secret_of_its_own(checkpoint):
    secrets = [{one.env["BATON_CHANNEL_SECRET"] for one in told(checkpoint, {})} for _ in "12"]
    assert [len(of_a_run) for of_a_run in secrets] == [1, 1]
    assert secrets[0] != secrets[1]
    for name, other in (("BATON_CHANNEL_SECRET", "_FILE"), ("BATON_CHANNEL_SECRET_FILE", "")):
        for one in told(checkpoint, {name: "given"}):
            assert one.env[name] == "given"
            assert f"BATON_CHANNEL_SECRET{other}" not in one.env


def test_clients_keys_are_for_the_coordinator_alone(checkpoint):
    inherited = {"BATON_API_KEYS": "a:key", "BATON_API_KEYS_FILE": "/keys"}
    coordinator, *workers = told(checkpoint, inherited)
    assert inherited.items() <= coordinator.env.items()
    for worker in workers:
        assert not inherited.keys() & worker.env.keys()


def test_workers_of_both_are_one_service_each(checkpoint):
    settings = resolve(
        num_gpus=0, model=checkpoint, role="colocated", workers=2, redis_url="redis://x"
    )
    planned = services(
        settings,
        port=1,
        listen_fd=9,
        run_dir=Path("/run/x"),
        inherited={"BATON_NUM_PAGES": "64"},
    )
    assert [one.name for one in planned] == ["coordinator", "colocated-1", "colocated-2"]
    assert {one.argv[1:] for one in planned[1:]} == {("-m", "colocated")}
    assert planned[1].env["BATON_NUM_PAGES"] == "64"


@pytest.mark.parametrize(("visible", "expected"), [(None, 2), ("", 0), ("1", 1), ("-1", 0)])
def test_gpus_are_counted_as_listed_and_visible(tmp_path, monkeypatch, visible, expected):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\n"
        "echo '0, GPU-a, NVIDIA H200, 580.65, 4, 143771, Disabled'\n"
        "echo '1, GPU-b, NVIDIA GB10, 580.65, [N/A], [N/A], [N/A]'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count_gpus() == expected


def test_no_driver_means_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.count_gpus() == 0


def test_port_zero_becomes_a_free_one():
    assert claim_port("127.0.0.1", 0) > 0


def test_address_of_another_machine_is_refused():
    with pytest.raises(ValueError, match=r"^--host: 192\.0\.2\.1 is not an address"):
        claim_port("192.0.2.1", 0)


def test_urls_bracket_ipv6():
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert base_url("::1", 80) == "http://[::1]:80"


def test_a_given_acceptance_of_drafts_is_for_random_weights(checkpoint):
    benchmark = {"load_format": "dummy", "draft_acceptance": 0.75}
    settings = resolve(num_gpus=0, model=checkpoint, redis_url="redis://there", **benchmark)
    planned = services(settings, port=1, run_dir=Path("/run/x"), inherited={})
    assert {one.env["BATON_DRAFT_ACCEPTANCE"] for one in planned} == {"0.75"}
    for changes, why in (
        ({"load_format": "auto"}, "is for benchmarks with random weights"),
        ({"draft_acceptance": 1.1}, "1.1 is not from 0 to 1"),
        ({"speculate": "off"}, "0.75, but speculate is off"),
    ):
        with pytest.raises(ValueError, match=f"^--draft-acceptance: {why}"):
            resolve(num_gpus=0, model=checkpoint, **benchmark | changes)
