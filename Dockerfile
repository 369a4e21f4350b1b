# syntax=docker/dockerfile:1
# keyfence, compiled, from its wheel. It runs as a user without rights, and the root file system may be read-only:
#   docker build -t keyfence --label org.opencontainers.image.revision=$(git rev-parse HEAD) .
#   docker run --rm --read-only --tmpfs /tmp -v keyfence:/var/lib/keyfence -e REDIS_URL=redis://HOST:6379 \
#     -p 127.0.0.1:7101-7104:7101-7104 -p 127.0.0.1:9464:9464 keyfence
# Findings are kept in the volume; without it they are lost with the container.
# Its RUN steps are those of the Makefile: `tests/test_dockerfile.py` compares the two, and
# `tools/clean_room.sh dockerfile` runs them without a Docker engine.

FROM debian:bookworm-slim AS builder
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev make python3-dev python3-venv
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE Makefile ./
COPY tools tools
COPY proxy proxy
COPY policies policies
RUN make wheel
RUN make install-wheel INTO=/opt/keyfence
RUN make sbom OF=/opt/keyfence INTO=/opt/keyfence/sbom.cdx.json

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="keyfence" \
    org.opencontainers.image.description="A Redis proxy that holds every key of every command against a written namespace policy" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.base.name="debian:bookworm-slim"
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 && rm -rf /var/lib/apt/lists
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/keyfence --shell /usr/sbin/nologin keyfence
COPY --from=builder /opt/keyfence /opt/keyfence
COPY policies /etc/keyfence/policies
COPY examples /etc/keyfence/examples
ENV PATH=/opt/keyfence/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 STATE_DIRECTORY=/var/lib/keyfence
USER 10001:10001
WORKDIR /etc/keyfence
EXPOSE 7101 7102 7103 7104 9464
HEALTHCHECK --interval=15s --timeout=3s --start-period=15s CMD ["keyfence", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["keyfence"]
CMD ["run", "--config", "examples/container.yaml"]
