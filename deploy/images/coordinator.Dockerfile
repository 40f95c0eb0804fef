# The coordinator: HTTP, placement, Redis. No torch, no GPU.
#
#   docker build -f deploy/images/coordinator.Dockerfile -t baton-coordinator .
#
# BASE_IMAGE needs python3 (3.11 to 3.13) with venv, or apt to install it.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS base
RUN python3 -c 'import ensurepip, venv' 2>/dev/null || { \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*; }
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/baton

FROM base AS build
WORKDIR /src
COPY . .
RUN /opt/baton/bin/pip wheel --no-deps --wheel-dir /wheel . \
    && python3 deploy/images/requirements.py > /requirements.txt

# Dependencies seldom change: another version of Baton is a small layer on the same layers.
FROM base
LABEL org.opencontainers.image.title="baton-coordinator" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home baton
COPY --from=build /requirements.txt /opt/baton/
RUN /opt/baton/bin/pip install -r /opt/baton/requirements.txt
COPY --from=build /wheel /opt/baton/wheel
RUN /opt/baton/bin/pip install --no-deps /opt/baton/wheel/*.whl
ENV PATH=/opt/baton/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    BATON_HOST=0.0.0.0 BATON_PORT=8000 BATON_BIND=tcp://0.0.0.0:5555
USER baton
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"BATON_PORT\"]}/health', timeout=2)"]
ENTRYPOINT ["python3", "-m", "coordinator"]
