"""What is read from NVML, in units that people use."""

import sys
from types import ModuleType

import pytest

from telemetry.gpu_readings import Xid
from telemetry.nvml import NvmlGpus, local_gpus
from tests.telemetry.fake_nvml import NOT_SUPPORTED, FakeNvml, NVMLError


def test_a_reading_is_in_watts_degrees_and_bytes() -> None:
    gpus = NvmlGpus(FakeNvml())
    assert [info.uuid for info in gpus.infos] == ["GPU-0", "GPU-1"]
    info = gpus.infos[0]
    assert (info.name, info.slowdown_c, info.power_limit_w) == ("NVIDIA H200", 88, 700.0)
    reading = gpus.read(1, 12.5)
    assert reading.at_s == 12.5
    assert reading.power_w == pytest.approx(512.345)
    assert (reading.temperature_c, reading.memory_temperature_c) == (61, 74.0)
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1965, 3201)
    assert reading.memory_used_bytes == 70 << 30
    assert reading.slowdowns == {"sw_power_cap"}
    assert (reading.ecc_uncorrected, reading.remap_pending, reading.remap_failed) == (
        0,
        True,
        False,
    )
    assert reading.nvlink_errors == 1 + 2 + 4
    assert gpus.notes == ()


def test_one_gpu_alone_is_looked_at_and_listened_to() -> None:
    library = FakeNvml()
    gpus = NvmlGpus(library, "GPU-1")
    assert [info.uuid for info in gpus.infos] == ["GPU-1"]
    library.events.append((1, 48))
    assert gpus.xids(1.0) == [Xid(1.0, 0, 48)]


def test_a_gpu_without_nvlink_has_no_errors_there_not_none_of_them() -> None:
    library = FakeNvml()
    library.fields = {82: 74}
    gpus = NvmlGpus(library)
    assert gpus.read(0, 0.0).nvlink_errors is None
    assert gpus.notes == (f"NVLink errors: {NOT_SUPPORTED}",)


def test_every_reason_of_a_slowdown_has_its_name() -> None:
    library = FakeNvml()
    library.reasons = 0xFFFF
    assert NvmlGpus(library).read(0, 0.0).slowdowns == {
        "sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake",
    }  # fmt: skip


def test_what_a_gpu_does_not_offer_is_none_and_named_once() -> None:
    refused = (
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetPowerUsage",
    )
    gpus = NvmlGpus(FakeNvml(*refused))
    readings = [gpus.read(0, float(t)) for t in range(3)]
    assert {(r.ecc_uncorrected, r.remap_pending, r.power_w) for r in readings} == {(None,) * 3}
    assert gpus.notes == (
        "power: Not Supported", "row remaps: Not Supported", "ECC errors: Not Supported",
    )  # fmt: skip


def test_xids_are_told_once_with_their_gpu() -> None:
    library = FakeNvml()
    gpus = NvmlGpus(library)
    library.events += [(1, 79), (0, 13)]
    assert gpus.xids(3.0) == [Xid(3.0, 1, 79), Xid(3.0, 0, 13)]
    assert gpus.xids(4.0) == []


def lost(library: FakeNvml) -> None:
    """From now on no GPU says who it is."""
    library.nvmlDeviceGetUUID = library._refuse


def test_the_xids_of_a_lost_gpu_are_told() -> None:
    library = FakeNvml()
    gpus = NvmlGpus(library)
    library.events += [(0, 13), (1, 48), (1, 79)]
    lost(library)
    assert gpus.xids(1.0) == [Xid(1.0, -1, 13), Xid(1.0, -1, 48), Xid(1.0, -1, 79)]
    assert gpus.notes == ("whose Xid it was: Not Supported",)


def test_a_lost_gpu_that_is_watched_alone_needs_not_say_who_it_is() -> None:
    library = FakeNvml()
    gpus = NvmlGpus(library, "GPU-1")
    library.events += [(1, 48), (1, 79)]
    lost(library)
    assert gpus.xids(1.0) == [Xid(1.0, 0, 48), Xid(1.0, 0, 79)]
    assert gpus.notes == ()


def test_where_events_are_refused_the_run_goes_on_without_them() -> None:
    gpus = NvmlGpus(FakeNvml("nvmlDeviceRegisterEvents"))
    assert gpus.xids(0.0) == []
    assert gpus.notes == ("Xid events cannot be seen here: Not Supported",)


def test_closing_ends_the_library() -> None:
    library = FakeNvml()
    NvmlGpus(library).close()
    assert library.closed


def pretend(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    module = ModuleType("pynvml")
    vars(module).update({"NVMLError": NVMLError, **functions})
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_a_machine_without_nvml_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    pretend(monkeypatch, nvmlInit=not_found)
    gpus = local_gpus()
    assert (gpus.infos, gpus.notes) == ((), ("no GPU: NVML says: NVML Shared Library Not Found",))
    pretend(monkeypatch, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 0)
    assert local_gpus().notes == ("no GPU: NVML lists none",)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in local_gpus().notes[0]
