# A server of Psyche with its relay and web page (target server, the default), or a client (target client).
#
#     docker build --tag psyche-server .
#     docker build --tag psyche-client --target client .
#
# docs/how-to/run-in-containers.md goes through it, compose.yaml runs the server. No key is in an image: keys are made in /state.

FROM python:3.12-slim AS source
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/psyche
COPY pyproject.toml constraints.txt LICENSE ./
COPY docs/psyche-core.md docs/
COPY tools/wheel_man_pages.py tools/
COPY psyche_core psyche_core
COPY plugins/backend_tcp plugins/backend_tcp
COPY plugins/data_http plugins/data_http
COPY plugins/optim_distro plugins/optim_distro
COPY plugins/optim_sparseloco plugins/optim_sparseloco
COPY plugins/p2p_quic plugins/p2p_quic

# A server checks a run's settings of an optimizer and computes nothing with it, so torch, which is large, is left out.
FROM source AS server-packages
RUN /opt/psyche/bin/pip install -c constraints.txt '.[web,metrics,otlp]' ./plugins/backend_tcp ./plugins/data_http \
      ./plugins/p2p_quic
RUN /opt/psyche/bin/pip install -c constraints.txt --no-deps ./plugins/optim_distro ./plugins/optim_sparseloco

FROM source AS client-packages
RUN /opt/psyche/bin/pip install -c constraints.txt torch
RUN /opt/psyche/bin/pip install -c constraints.txt '.[train,metrics,otlp]' ./plugins/backend_tcp ./plugins/p2p_quic \
      './plugins/optim_distro[fast]' ./plugins/optim_sparseloco ./plugins/data_http

FROM python:3.12-slim AS program
RUN useradd --create-home --uid 10001 psyche && install --directory --owner=psyche --group=psyche /state
ENV PATH=/opt/psyche/bin:$PATH PYTHONUNBUFFERED=1
USER psyche
WORKDIR /home/psyche
VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT ["psyche"]
CMD ["--help"]

FROM program AS client
# What is compiled for this machine's processor stays in the volume, for the next container.
ENV NUMBA_CACHE_DIR=/state/numba-cache
COPY --from=client-packages /opt/psyche /opt/psyche

FROM program AS server
COPY --from=server-packages /opt/psyche /opt/psyche
EXPOSE 20000/tcp 20001/tcp 3340/tcp 3340/udp 8420/tcp
