# The gateway: no torch. Build it from the repository's root:
#   docker build --file docker/gateway.Dockerfile --tag ace-gateway:0.1.0 .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
COPY constraints.txt ./
RUN python -m venv /opt/ace \
    && pip install --no-cache-dir --constraint constraints.txt hatchling
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/ace/bin/pip install --no-cache-dir --constraint constraints.txt "$(echo /wheels/*.whl)[postgres]"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="ACE gateway" \
      org.opencontainers.image.description="Measures and drives lossless speculative decoding before your model servers" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can see that it is not root; it has no entry in /etc/passwd and no home.
RUN install --directory --owner 10001 --group 10001 /var/lib/ace
COPY --from=build /opt/ace /opt/ace
ENV PATH=/opt/ace/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ACE_HOST=0.0.0.0 \
    ACE_OPERATIONS_PORT=8081 \
    ACE_DATA_DIR=/var/lib/ace
USER 10001:10001
# All that is written to: the root file system may be read-only.
VOLUME ["/var/lib/ace", "/tmp"]
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"ACE_OPERATIONS_PORT\"]}/healthz', timeout=4)"]
ENTRYPOINT ["ace"]
CMD ["serve"]
