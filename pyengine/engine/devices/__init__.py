"""Where a model runs: a CPU or a GPU, and what differs between them."""

from pyengine.config import DeviceName
from pyengine.engine.devices.cpu import CpuDevice
from pyengine.engine.devices.cuda import CudaDevice, why_there_is_none
from pyengine.engine.devices.device import Device

__all__ = ["CpuDevice", "CudaDevice", "Device", "find_device"]


def find_device(name: DeviceName) -> Device:
    """The device that the option `device` asks for; "auto" takes a GPU if there is one.

    Raises:
        ValueError: a GPU is asked for where none can be used; the message says why.
    """
    if name == "cpu":
        return CpuDevice()
    reason = why_there_is_none()
    if reason is None:
        return CudaDevice()
    if name == "auto":
        return CpuDevice()
    raise ValueError(f"device must be cpu or auto here, got {name!r}: {reason}")
