# The command line with its janitor, as a small image. `docker build -t stratalog .`

FROM python:3.13.9-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python -m venv /opt/stratalog && /opt/stratalog/bin/pip install --no-cache-dir "/src[archive]"

FROM python:3.13.9-slim-trixie
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin stratalog \
    && install --directory --owner stratalog --group stratalog /data
COPY --from=build /opt/stratalog /opt/stratalog
ENV PATH=/opt/stratalog/bin:$PATH STRATALOG_DATA=/data PYTHONUNBUFFERED=1
USER stratalog
VOLUME /data
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s CMD ["stratalog", "log-dirs", "--json"]
ENTRYPOINT ["stratalog"]
CMD ["janitor", "--watch", "--every", "5m"]
