"""Processes that a launcher starts, waits for and stops: nothing is left behind, and a failure shows its own words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from vrag.errors import ConfigError, VragError
from vrag.settings import is_loopback

#: Generous: a slow machine may be busy with something else.
START_SECONDS = 180.0
#: What ends a launcher: Ctrl-C, a polite kill, a terminal that is closed.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceError(VragError):
    """A service did not come up or went down."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(port: int, name: str, option: str) -> None:
    """Fail with a sentence when something already listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError as error:
            raise ConfigError(
                f"Port {port} for the {name} may be used by administrators only. Choose one above 1023 with {option} PORT."
            ) from error
        except OSError as error:
            raise ConfigError(
                f"Port {port} for the {name} is already in use. Stop what uses it (an earlier demo?), "
                f"or choose another with {option} PORT."
            ) from error


def status(url: str, key: str = "", timeout: float = 3.0) -> int | None:
    """The status with which ``url`` answers; None where nothing answers."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(url, timeout=timeout, headers=headers, trust_env=not is_loopback(url)).status_code
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


def run(command: Sequence[str], cwd: Path) -> int:
    """Run a command to its end and return its status. An interruption reaches it first, and leaves nothing of it."""
    # A session of its own: what it starts is stopped with it, and Ctrl-C comes to it from here, once.
    with subprocess.Popen(list(command), cwd=cwd, start_new_session=True) as process:
        try:
            return process.wait()
        except BaseException:
            _end(process, (signal.SIGINT, 15.0), (signal.SIGKILL, 5.0))
            raise


def _end(process: subprocess.Popen[bytes], *attempts: tuple[signal.Signals, float]) -> None:
    """Send the signals to the process and its children, one after the other; the next where time runs out."""
    for sign, seconds in attempts:
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        # Its children may outlive it; the group gets the last signal as well.
    process.wait()


@dataclass
class Service:
    """One child process in a session of its own, so that Ctrl-C reaches only the launcher, which stops it in order."""

    name: str
    command: Sequence[str]
    health: str
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.command),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env},
                cwd=self.cwd,
                start_new_session=True,
            )

    def wait_ready(self, seconds: float) -> None:
        """Return once the health URL answers; raise :class:`ServiceError` with the log's end if it never does."""
        deadline = time.monotonic() + seconds
        while not 200 <= (status(self.health) or 0) < 300:
            if self.exited():
                raise ServiceError(f"The {self.name} stopped while starting.\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"The {self.name} was not ready after {seconds:.0f} s ({self.health}).\n{self.tail()}"
                )
            time.sleep(0.1)

    def exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        """End the process and its children: politely first, then for certain."""
        if self.process is not None:
            _end(self.process, (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))
            self.process = None

    def tail(self, lines: int = 15) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        end = "\n".join(f"  | {line}" for line in text.strip().splitlines()[-lines:])
        return f"The end of its log ({self.log}):\n{end}" if end else f"Its log ({self.log}) is empty."


class Services:
    """Several services as one: ``with Services() as services: services.start(...)``; leaving stops all of them."""

    def __init__(self) -> None:
        self.running: list[Service] = []

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *exc: object) -> None:
        # A second Ctrl-C must not leave a half of them running. Signals can only be set aside in the main thread.
        main = threading.current_thread() is threading.main_thread()
        kept = {sign: signal.signal(sign, signal.SIG_IGN) for sign in INTERRUPTS} if main else {}
        try:
            for service in reversed(self.running):
                service.stop()
        finally:
            for sign, handler in kept.items():
                signal.signal(sign, handler)

    def launch(self, *services: Service) -> None:
        """Start all of them side by side without waiting."""
        for service in services:
            self.running.append(service)
            service.start()

    def start(self, *services: Service, seconds: float = START_SECONDS) -> None:
        """Start all of them side by side, then wait until each is ready."""
        self.launch(*services)
        self.wait(*services, seconds=seconds)

    def wait(self, *services: Service, seconds: float = START_SECONDS) -> None:
        """Wait until each is ready."""
        for service in services:
            service.wait_ready(seconds)

    def watch(self) -> None:
        """Block until one of them ends by itself, and say which."""
        while True:
            for service in self.running:
                if service.exited():
                    raise ServiceError(f"The {service.name} stopped.\n{service.tail()}")
            time.sleep(0.5)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
