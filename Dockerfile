# One image for CPU and CUDA (docs/containers.md):
#   docker build -t registry.example.com/spag-ray:cpu .
#   docker build -t registry.example.com/spag-ray:gpu --build-arg LOCK=gpu .
# CUDA's libraries come with the packages of requirements/gpu.txt; the driver comes from the machine.
FROM debian:bookworm-slim AS lock
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# gcc and Python.h compile GPU kernels when a run starts, g++ DeepSpeed's Adam for optimiser states on the host.
# KubeRay's health checks call wget.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates g++ gcc libc6-dev libnuma1 python3 python3-dev python3-venv wget \
    && rm -rf /var/lib/apt/lists/*

# The packages: this layer is built again only if the lock changes. PyTorch's own index is used only if the ordinary one
# has no such build.
ARG LOCK=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PATH=/opt/spag-ray/bin:$PATH
COPY requirements/${LOCK}.txt /opt/lock.txt
RUN python3 -m venv /opt/spag-ray \
    && grep '^torch==' /opt/lock.txt > /tmp/torch.txt \
    && grep -v '^torch==' /opt/lock.txt > /tmp/others.txt \
    && { pip install --no-cache-dir --no-deps -r /tmp/torch.txt \
        || { grep -q '+cpu$' /tmp/torch.txt \
            && pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" -r /tmp/torch.txt; }; } \
    && pip install --no-cache-dir --no-deps -r /tmp/others.txt \
    && rm /tmp/torch.txt /tmp/others.txt

# The wheel is built in a stage of its own: the sources are not in the image.
FROM lock AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel /src

FROM lock
COPY --from=wheel /wheel /opt/wheel
RUN pip install --no-cache-dir --no-deps --no-index /opt/wheel/*.whl \
    && useradd --create-home --uid 1000 spag

# Read by NVIDIA's container runtime; without one they have no effect.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /home/spag
ENTRYPOINT ["spag-ray"]
CMD ["--help"]
