# A worker of any role, which the command names: prefill, decode or colocated.
#
#   docker build -f deploy/images/worker.Dockerfile -t baton-worker .
#   docker build -f deploy/images/worker.Dockerfile -t baton-worker:cpu \
#       --build-arg VARIANT=cpu --build-arg BASE_IMAGE=python:3.12-slim-bookworm .
#
# CPU_TORCH_INDEX names another index with torch's CPU build than PyTorch's, such as a mirror.
# VARIANT cuda brings CUDA's libraries with torch, cupy and NVML's bindings; the driver comes from
# the host. Triton compiles its launchers with a C compiler at run time. VARIANT cpu is the tiny
# model's. BASE_IMAGE needs python3 (3.11 to 3.13) with venv, or apt to install it.
ARG BASE_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04

FROM ${BASE_IMAGE} AS base
ARG VARIANT=cuda
RUN wanted=""; \
    python3 -c 'import ensurepip, venv' 2>/dev/null || wanted="python3 python3-venv"; \
    [ "$VARIANT" = cpu ] || wanted="$wanted gcc libc6-dev python3-dev"; \
    [ -z "$wanted" ] || { \
        apt-get update \
        && apt-get install -y --no-install-recommends $wanted \
        && rm -rf /var/lib/apt/lists/*; }
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/baton

FROM base AS build
ARG VARIANT=cuda
WORKDIR /src
COPY . .
# A CPU needs no triton: plain PyTorch computes there.
RUN /opt/baton/bin/pip wheel --no-deps --wheel-dir /wheel . \
    && mkdir /wanted \
    && if [ "$VARIANT" = cpu ]; then \
        python3 deploy/images/requirements.py worker | sed '/^triton==/d; s/^torch==.*/&+cpu/'; \
    else python3 deploy/images/requirements.py worker gpu; fi > /wanted/requirements.txt \
    && grep '^torch==' /wanted/requirements.txt > /wanted/torch.txt

# torch is nine tenths of the image and changes least. The other dependencies follow, so that
# another version of Baton is a small layer on the same layers.
FROM base
ARG VARIANT=cuda
ARG CPU_TORCH_INDEX=
LABEL org.opencontainers.image.title="baton-worker" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --create-home baton \
    && install -d -o baton -g baton /var/cache/baton /var/lib/baton/gpus
COPY --from=build /wanted/torch.txt /opt/baton/
RUN if [ "$VARIANT" = cpu ]; then \
        index="--extra-index-url ${CPU_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"; fi \
    && /opt/baton/bin/pip install -r /opt/baton/torch.txt $index
COPY --from=build /wanted/requirements.txt /opt/baton/
RUN /opt/baton/bin/pip install -r /opt/baton/requirements.txt
COPY --from=build /wheel /opt/baton/wheel
RUN /opt/baton/bin/pip install --no-deps /opt/baton/wheel/*.whl
ENV PATH=/opt/baton/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    CUDA_DEVICE_ORDER=PCI_BUS_ID TRITON_CACHE_DIR=/var/cache/baton/triton \
    BATON_GPU_LOCK_DIR=/var/lib/baton/gpus \
    BATON_STATE_FILE=/tmp/baton-state
USER baton
STOPSIGNAL SIGTERM
# Loading has no limit here. A worker that hangs later is fenced by the coordinator and ends.
HEALTHCHECK --interval=5s --timeout=3s --start-period=600s --retries=3 \
    CMD ["grep", "-qx", "ready", "/tmp/baton-state"]
ENTRYPOINT ["python3", "-m"]
CMD ["decode"]
