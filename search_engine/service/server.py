"""The service as a process: an address that is free, a sentence for all that can go wrong at the start."""

from __future__ import annotations

import logging
import signal
import socket
import sys

import uvicorn

from search_engine.service.app import create_app
from search_engine.service.engines import existing
from search_engine.service.settings import ServiceSettings
from vrag.errors import ConfigError

log = logging.getLogger(__name__)

#: Connections that may wait to be accepted: a burst of a thousand clients is not turned away.
BACKLOG = 2048
#: Seconds that an idle connection is kept, and that requests under way get when the service stops.
KEEP_ALIVE, GRACE = 30, 10


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal stops it. Raises :class:`ConfigError` when it cannot start or cannot load the index."""
    existing(settings)  # fail before anything is started
    listener = listen(settings.host, settings.port)
    app = create_app(settings, on_failure=lambda: setattr(server, "should_exit", True))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            backlog=BACKLOG,
            access_log=False,
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
        )
    )
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: app.state.service.request_reload())
    host, port = listener.getsockname()[:2]
    log.info("Listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    with listener:
        server.run(sockets=[listener])
    if (failure := app.state.service.slot.failure) is not None:
        raise ConfigError(failure)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; a busy port or an address that is not this machine's is a :class:`ConfigError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The search service cannot listen on {host}:{port} ({error.strerror or error}). Stop what uses the port, "
            "or choose another with --port."
        ) from error
    return listener
