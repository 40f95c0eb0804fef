"""Reads this machine's GPUs through NVIDIA's management library (package ``nvidia-ml-py``)."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from telemetry.gpu_readings import GpuInfo, Gpus, NoGpus, Reading, Xid

_T = TypeVar("_T")

# NVML's "clocks event reasons", by the bits of nvml.h.
SLOWDOWNS: Final = {
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000020: "sw_thermal",
    0x0000000000000040: "hw_thermal",
    0x0000000000000080: "hw_power_brake",
}
_MILLI: Final = 1000


def local_gpus(uuid: str = "") -> Gpus:
    """The GPUs that NVML lists, or only the one with this UUID; ``NoGpus`` with the reason where it
    lists none."""
    try:
        import pynvml
    except ImportError:
        return NoGpus("the package nvidia-ml-py is not installed (extra: gpu)")
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount():
            return NvmlGpus(pynvml, uuid)
    except pynvml.NVMLError as error:
        return NoGpus(f"NVML says: {error}")
    return NoGpus("NVML lists none")


class NvmlGpus:
    """The GPUs that NVML lists. ``library`` is the initialised module ``pynvml``, or a recording of
    it. With a ``uuid`` only that GPU is read, as number 0."""

    def __init__(self, library: Any, uuid: str = "") -> None:
        self._nvml = library
        if uuid:
            self._handles = [library.nvmlDeviceGetHandleByUUID(uuid)]
        else:
            count = library.nvmlDeviceGetCount()
            self._handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._notes: dict[str, None] = {}
        self.infos = tuple(self._info(i) for i in range(len(self._handles)))
        self._events = self._watch()

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def read(self, gpu: int, at_s: float) -> Reading:
        nvml, handle = self._nvml, self._handles[gpu]
        memory = self._ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        power = self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        remap = self._ask("row remaps", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        reasons = self._ask(
            "slowdowns", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        )
        return Reading(
            at_s,
            utilisation_pct=self._ask(
                "utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            ),
            memory_used_bytes=memory,
            temperature_c=self._ask(
                "temperature",
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            ),
            memory_temperature_c=self._ask("memory temperature", lambda: self._memory_c(handle)),
            power_w=None if power is None else power / _MILLI,
            sm_clock_mhz=self._clock(handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._clock(handle, nvml.NVML_CLOCK_MEM),
            slowdowns=frozenset(name for bit, name in SLOWDOWNS.items() if (reasons or 0) & bit),
            ecc_uncorrected=self._ask(
                "ECC errors",
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
            ),
            remap_pending=None if remap is None else bool(remap[2]),
            remap_failed=None if remap is None else bool(remap[3]),
            nvlink_errors=self._ask("NVLink errors", lambda: self._nvlink_errors(handle)),
        )

    def xids(self, at_s: float) -> list[Xid]:
        found: list[Xid] = []
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError_Timeout:
                break
            except self._nvml.NVMLError as error:
                self._notes[f"Xid events are no longer seen: {error}"] = None
                self._events = None
                break
            found.append(Xid(at_s, self._index_of(event.device), int(event.eventData)))
        return found

    def close(self) -> None:
        if self._events is not None:
            self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()

    def _info(self, gpu: int) -> GpuInfo:
        nvml, handle = self._nvml, self._handles[gpu]
        limit = self._ask("power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return GpuInfo(
            gpu,
            nvml.nvmlDeviceGetUUID(handle),
            nvml.nvmlDeviceGetName(handle),
            nvml.nvmlSystemGetDriverVersion(),
            nvml.nvmlDeviceGetMemoryInfo(handle).total,
            slowdown_c=self._ask(
                "slowdown temperature",
                lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                    handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                ),
            ),
            power_limit_w=None if limit is None else limit / _MILLI,
            max_sm_clock_mhz=self._ask(
                "highest clock", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            ),
        )

    def _watch(self) -> Any:
        """An event set with every GPU's Xids; None, with a note, where NVML refuses it."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            self._notes[f"Xid events cannot be seen here: {error}"] = None
            return None
        return events

    def _index_of(self, device: Any) -> int:
        """The GPU's index in ``infos``; -1 if its UUID cannot be read, as of a GPU that fell off
        the bus, whose Xid must not be lost."""
        if len(self._handles) == 1:
            return 0
        uuid = self._ask("whose Xid it was", lambda: self._nvml.nvmlDeviceGetUUID(device))
        return next((info.index for info in self.infos if info.uuid == uuid), -1)

    def _clock(self, handle: Any, kind: int) -> float | None:
        return self._ask("clocks", lambda: self._nvml.nvmlDeviceGetClockInfo(handle, kind))

    def _memory_c(self, handle: Any) -> float:
        (value,) = self._fields(handle, [self._nvml.NVML_FI_DEV_MEMORY_TEMP])
        return float(value.uiVal)

    def _nvlink_errors(self, handle: Any) -> int:
        nvml = self._nvml
        kinds = [
            nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ]
        return sum(int(value.ullVal) for value in self._fields(handle, kinds))

    def _fields(self, handle: Any, ids: list[int]) -> list[Any]:
        """The values of the fields that NVML reports; raises if it reports none."""
        nvml = self._nvml
        fields = nvml.nvmlDeviceGetFieldValues(handle, ids)
        offered = [field.value for field in fields if field.nvmlReturn == nvml.NVML_SUCCESS]
        if not offered:
            raise nvml.NVMLError(fields[0].nvmlReturn)
        return offered

    def _ask(self, what: str, question: Callable[[], _T]) -> _T | None:
        """The result of ``question``; None, with a note, if this GPU or driver does not report it.
        Every call fails for a GPU that fell off the bus; the notes say so.
        """
        try:
            return question()
        except self._nvml.NVMLError as error:
            self._notes[f"{what}: {error}"] = None
            return None
