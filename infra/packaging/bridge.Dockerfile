# The image of the gRPC bridge. Its build context is staged by infra/packaging/image_context.py: sources and the bridge's
# part of requirements.lock. Wheels only, checked against their hashes; nothing is compiled or resolved here.
#
# The base image is that of the segment store's image, and pinned as there.
FROM public.ecr.aws/docker/library/python:3.13-slim-bookworm@sha256:01f42367a0a94ad4bc17111776fd66e3500c1d87c15bbd6055b7371d39c124fb

# A number and not a name, so that whoever runs the image can see that it is not root.
ARG BRIDGE_USER=10001

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

WORKDIR /opt/headrace
COPY requirements.txt ./
RUN pip install --no-deps --require-hashes --only-binary :all: --requirement requirements.txt
COPY headrace ./headrace
# The root file system is read-only where this runs: compile now or at every start.
RUN python -m compileall -q headrace

USER ${BRIDGE_USER}:${BRIDGE_USER}
EXPOSE 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "headrace.bridge"]
