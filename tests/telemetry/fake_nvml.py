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
    """Two GPUs. ``refuses`` names functions that raise; ``events`` are (gpu, Xid) to come,
    ``fields`` what is answered by field id; an id that is not among them is not supported."""

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
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *refuses: str) -> None:
        self.events: list[tuple[int, int]] = []
        self.fields = {82: 74, 38: 1, 52: 2, 59: 4}
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
            "nvmlDeviceGetHandleByUUID": self._handle_of,
            "nvmlDeviceGetFieldValues": lambda _, ids: [self._field(each) for each in ids],
            "nvmlEventSetCreate": lambda: "events",
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlEventSetFree": lambda _: None,
            "nvmlShutdown": self._shutdown,
        }
        for name, answer in answers.items():
            setattr(self, name, self._refuse if name in refuses else answer)

    def _handle_of(self, uuid: str) -> int:
        if uuid not in ("GPU-0", "GPU-1"):
            raise NVMLError("Not Found")
        return int(uuid[-1])

    def _field(self, number: int) -> SimpleNamespace:
        found = self.fields.get(number)
        value = SimpleNamespace(uiVal=found or 0, ullVal=found or 0)
        return SimpleNamespace(
            nvmlReturn=NOT_SUPPORTED if found is None else NVML_SUCCESS, value=value
        )

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
