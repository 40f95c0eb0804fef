"""The part of ``pynvml`` that is used, playing back what an H200 answered."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NVML_SUCCESS = 0
NOT_SUPPORTED = 3


class NVMLError(Exception):
    pass


class NVMLError_Timeout(NVMLError):
    pass


class FakeNvml:
    """Two GPUs. ``refuses`` names functions that raise; ``events`` are (gpu, Xid) to come."""

    NVMLError = NVMLError
    NVMLError_Timeout = NVMLError_Timeout
    NVML_SUCCESS = NVML_SUCCESS
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_MEMORY_TEMP = 82
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *refuses: str) -> None:
        self.events: list[tuple[int, int]] = []
        self.reasons = 0x4
        self.closed = False
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=70 << 30, total=140 << 30),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetTemperatureThreshold": lambda *_: 88,
            "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=60),
            "nvmlDeviceGetTemperature": lambda *_: 61,
            "nvmlDeviceGetPowerUsage": lambda _: 512_345,
            "nvmlDeviceGetClockInfo": lambda _, kind: 1965 if kind == 1 else 3201,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self.reasons,
            "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
            "nvmlDeviceGetRemappedRows": lambda _: (1, 0, 1, 0),
            "nvmlDeviceGetFieldValues": lambda *_: [
                SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=SimpleNamespace(uiVal=74))
            ],
            "nvmlEventSetCreate": lambda: "events",
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlEventSetFree": lambda _: None,
            "nvmlShutdown": self._shutdown,
        }
        for name, answer in answers.items():
            setattr(self, name, self._refuse if name in refuses else answer)

    def _next_event(self, _: Any, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0, "the sampler must not wait for events"
        if not self.events:
            raise NVMLError_Timeout("Timeout")
        gpu, number = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventData=number)

    def _shutdown(self) -> None:
        self.closed = True

    def _refuse(self, *_: Any) -> Any:
        raise NVMLError("Not Supported")
