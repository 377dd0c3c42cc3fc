# The lab on a CPU:  docker build -t rlhf-lab . && docker run -p 7860:7860 -v rlhf-lab:/data rlhf-lab
# The operator's link is in the log of the container. Labels, models and runs are on the volume.
FROM python:3.11-slim-bookworm

# The C compiler makes the kernels fast; without it the lab works with PyTorch's own.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /lab
COPY requirements.txt .
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "torch==$(sed -n 's/^torch==//p' requirements.txt)+cpu" \
    && pip install --no-cache-dir -r requirements.txt
COPY app.py ./
COPY rlhf_lab ./rlhf_lab
COPY assets ./assets
COPY docs/METRICS.md ./docs/METRICS.md

# User 1000 is the one that Hugging Face Spaces runs a container as.
RUN useradd --create-home --uid 1000 lab && mkdir /data && chown lab /data
USER 1000
VOLUME /data
EXPOSE 7860
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/api/status', timeout=10)"]
CMD ["python", "app.py", "--host", "0.0.0.0"]
