"""A CPU as verl's device, for tests and the tiny pipeline: FSDP2 over gloo, ranks as fake GPUs of Ray.

verl asks the device's namespace (``torch.cuda``) for memory figures, random states and streams; ``torch.cpu`` has only some
of them, so a module with its names and harmless answers for the rest stands in. Ray's resource "GPU" counts ranks:
``ray_kwargs.ray_init.num_gpus`` has to be set to their number.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry, platform_manager, set_platform


def _nothing(*_: Any, **__: Any) -> None:
    """Accepts anything, does nothing."""


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """``torch.cpu`` with the names that verl calls on ``torch.cuda``."""
    module = types.ModuleType("vrag_cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(module, name, _zero)
    for name in (
        "empty_cache",
        "reset_peak_memory_stats",
        "ipc_collect",
        "set_per_process_memory_fraction",
        "set_device",
    ):
        setattr(module, name, _nothing)
    own: dict[str, Any] = {
        "mem_get_info": lambda *_, **__: (8 << 30, 16 << 30),
        "is_available": lambda: False,  # verl's memory utilities ask only this
        "get_device_name": lambda *_, **__: "CPU",
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
    }
    for name, value in own.items():
        setattr(module, name, value)
    return module


_DEVICE = _device_module()


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """See the module's text."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs ahead."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no allocator to set."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """There is none."""

    def profiler_stop(self) -> None:
        """There is none."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def install() -> None:
    """Make the CPU verl's platform in this process."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    # verl has looked for a GPU while it was imported; forgetting what it found spares a warning in every process.
    platform_manager._current_platform = None
    set_platform(CpuPlatform())
