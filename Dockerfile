# A container with GPUs: CUDA 13 (which vLLM 0.32 asks for; the driver must know it), Python (3.12, as Ubuntu 24.04
# has it), and easyr1 with vLLM.
# Not built by us yet. Read it, change it, and tell what you had to change.
#
#   docker build -t easyr1 .
#   docker run -it --ipc=host --gpus=all -v "$PWD:/workspace" easyr1
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/easyr1 PATH=/opt/easyr1/bin:$PATH PYTHONUNBUFFERED=1
RUN python3 -m venv "$VIRTUAL_ENV"

COPY . /opt/src
RUN pip install --no-cache-dir "/opt/src[vllm,cluster,video,wandb]"

WORKDIR /workspace
CMD ["bash"]
