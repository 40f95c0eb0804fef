"""The checks of ``baton doctor`` where there are GPUs: driver, memory, marks, peer access."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from deploy.findings import Finding, last_line
from deploy.gpus import ListedGpu, listed_gpus
from deploy.known_models import models_that_fit
from engine.gpu_arch import HOPPER, arch_number, arch_problem, unmeasured
from telemetry.version import install_command
from worker.gpu_locks.folder import DEFAULT, SETTING
from worker.gpu_locks.marks import how_to_clear, unfit_gpus

_CUDA_TIMEOUT_S = 120.0
_MIN_DRIVER = 580
_BUSY_MIB = 1024


def driver(environ: Mapping[str, str]) -> tuple[list[ListedGpu], list[Finding]]:
    """The GPUs that nvidia-smi lists, and the findings about them."""
    try:
        gpus = listed_gpus()
    except FileNotFoundError:
        return [], [Finding("ok", "gpus", "no NVIDIA driver here: Baton serves on the CPU")]
    except (OSError, subprocess.SubprocessError) as error:
        advice = "run nvidia-smi by hand; reload or reinstall the driver"
        return [], [Finding("fail", "gpus", f"nvidia-smi does not answer: {error}", advice)]
    if not gpus:
        return [], []
    findings = [finding for gpu in gpus for finding in _one(gpu)]
    findings.append(models_that_fit(min(gpu.total_mib for gpu in gpus) << 20))
    if int(gpus[0].driver.partition(".")[0]) < _MIN_DRIVER:
        advice = f"update it to {_MIN_DRIVER} or newer, which CUDA 13 needs"
        findings.append(Finding("fail", "driver", f"version {gpus[0].driver}", advice))
    else:
        findings.append(Finding("ok", "driver", f"version {gpus[0].driver}"))
    if find_spec("cupy") is None:
        advice = f"{install_command('gpu')}: it allocates the memory that workers exchange"
        findings.append(Finding("fail", "versions", "cupy is missing", advice))
    if (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        text = f"CUDA_VISIBLE_DEVICES={visible} hides GPUs from the workers"
        advice = "unset it: each worker locks a GPU and reads other workers' by NVLink"
        findings.append(Finding("warn", "gpus", text, advice))
    return gpus, findings


def _one(gpu: ListedGpu) -> list[Finding]:
    name = f"{gpu.index} {gpu.name}"
    text = f"{name} {gpu.uuid}: {gpu.used_mib} of {gpu.total_mib} MiB used"
    findings = []
    if gpu.used_mib > _BUSY_MIB:
        advice = "end the process that uses it (nvidia-smi lists it), or expect room for less"
        findings.append(Finding("warn", "gpus", text, advice))
    if gpu.in_mig_mode:
        advice = f"nvidia-smi -i {gpu.index} -mig 0: MIG devices cannot exchange memory"
        findings.append(Finding("fail", "gpus", f"{name} is in MIG mode", advice))
    return findings or [Finding("ok", "gpus", text)]


def locks(gpus: list[ListedGpu], environ: Mapping[str, str]) -> list[Finding]:
    """Findings about the lock folder: whether workers can lock GPUs there, and which GPUs are
    marked as unfit. The folder of containers is a volume, which is not seen here."""
    folder = Path(environ.get(SETTING) or DEFAULT)
    is_usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    if not is_usable and (folder.exists() or not os.access(folder.parent, os.W_OK | os.X_OK)):
        advice = f"set {SETTING} to a folder that all workers of this machine may write to"
        return [Finding("fail", "gpus", f"workers cannot lock GPUs in {folder}", advice)]
    marks = unfit_gpus(folder)
    found = [Finding("warn", "gpus", str(each), how_to_clear([each])) for each in marks.values()]
    if gpus and {gpu.uuid for gpu in gpus} <= marks.keys():
        advice = "see each of them; workers that start here will not get one"
        found.append(Finding("fail", "gpus", "every GPU here is unfit", advice))
    return found


def peers(environ: Mapping[str, str]) -> tuple[int, list[Finding]]:
    """The number of GPUs that CUDA offers, and findings about access to each other's memory."""
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "worker.pairtest", "gpus"],
            env=dict(environ), capture_output=True, text=True, timeout=_CUDA_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        advice = "look for a hung process or GPU: nvidia-smi, the kernel's log (Xid)"
        return 0, [Finding("fail", "cuda", f"no answer in {_CUDA_TIMEOUT_S:.0f} s", advice)]
    if answer.returncode:
        advice = "install torch for CUDA 13 and a driver that supports it"
        return 0, [Finding("fail", "cuda", last_line(answer.stderr), advice)]
    report: dict[str, Any] = msgspec.json.decode(answer.stdout)
    findings = list[Finding]()
    archs = [arch_number((major, minor)) for major, minor in report["capabilities"]]
    for i, (name, arch) in enumerate(zip(report["names"], archs, strict=True)):
        text = f"GPU {i} {name} has compute capability {arch / 10:.1f}"
        if problem := arch_problem(arch, quantised=False):
            findings.append(Finding("fail", "cuda", text, problem))
        elif warning := unmeasured(arch):
            advice = "; ".join(filter(None, (warning, arch_problem(arch, quantised=True))))
            findings.append(Finding("warn", "cuda", text, advice))
    matrix: list[list[bool]] = report["peers"]
    cut = [f"{i} from {j}" for i, row in enumerate(matrix) for j, can in enumerate(row) if not can]
    if cut:
        advice = "see nvidia-smi topo -p2p r; give the GPUs NVLink or PCIe peer access, ACS off"
        findings.append(Finding("fail", "peer access", f"not {', '.join(cut)}", advice))
    elif len(matrix) > 1:
        findings.append(Finding("ok", "peer access", f"all {len(matrix)} GPUs to all others"))
    where = "between" if any(map(unmeasured, archs)) else "beside"
    text = f"long prompts of a worker without a spread group: {where} decode steps"
    findings.append(Finding("ok", "kernels", text))
    why = report.get("no_cudnn", "")
    how = f"Triton ({why})" if why else "Triton and cuDNN"
    if HOPPER in archs:
        how += "; int8 on tensor cores with --quantize fp8"
    findings.append(Finding("ok", "kernels", f"prompts behind deep contexts: {how}"))
    return len(matrix), findings
