# syntax=docker/dockerfile:1
# keyfence, compiled. It runs as a user without rights, and the root file system may be read-only:
#   docker build -t keyfence .
#   docker run --rm --read-only --tmpfs /tmp -v keyfence:/var/lib/keyfence -p 7101-7104:7101-7104 -p 9464:9464 keyfence
# Findings are kept in the volume; without it they are lost with the container.
# Its RUN steps are those of the Makefile: `tests/test_dockerfile.py` compares the two, and
# `tools/clean_room.sh dockerfile` runs them without a Docker engine.

FROM python:3.11-slim AS builder
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md Makefile ./
COPY proxy proxy
COPY policies policies
ENV KEYFENCE_COMPILED=required
RUN make install VENV=/opt/keyfence EDITABLE=

FROM python:3.11-slim
COPY --from=builder /opt/keyfence /opt/keyfence
COPY policies /etc/keyfence/policies
COPY examples /etc/keyfence/examples
ENV PATH=/opt/keyfence/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 STATE_DIRECTORY=/var/lib/keyfence
RUN useradd --system --user-group --create-home --home-dir /var/lib/keyfence --shell /usr/sbin/nologin keyfence
USER keyfence
WORKDIR /etc/keyfence
EXPOSE 7101 7102 7103 7104 9464
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9464/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["keyfence"]
CMD ["run", "--config", "examples/container.yaml"]
