"""Processes that a launcher starts, waits for and stops: nothing is left behind, and a failure shows its own words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from vrag.errors import ConfigError, VragError


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
        except OSError as error:
            raise ConfigError(
                f"Port {port} for the {name} is already in use. Stop what uses it (an earlier demo?), "
                f"or choose another with {option} PORT."
            ) from error


def answers(url: str, timeout: float = 2.0) -> bool:
    """Whether ``url`` answers with a success status."""
    try:
        return httpx.get(url, timeout=timeout, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@dataclass
class Service:
    """One child process in a session of its own, so that Ctrl-C reaches only the launcher, which stops it in order."""

    name: str
    command: Sequence[str]
    health: str
    log: Path
    env: dict[str, str] = field(default_factory=dict)
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
                start_new_session=True,
            )

    def wait_ready(self, seconds: float) -> None:
        """Return once the health URL answers; raise :class:`ServiceError` with the log's end if it never does."""
        deadline = time.monotonic() + seconds
        while not answers(self.health):
            if self.process is not None and self.process.poll() is not None:
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
        if self.process is None:
            return
        for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
            if sign == signal.SIGTERM:
                continue  # its children may outlive it; the group gets the second signal
        self.process.wait()
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
        for service in reversed(self.running):
            service.stop()

    def start(self, *services: Service, seconds: float = 60.0) -> None:
        """Start all of them side by side, then wait until each is ready."""
        for service in services:
            self.running.append(service)
            service.start()
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
