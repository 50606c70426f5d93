"""Inventory of a host: with GPUs, without GPUs, and with a driver that does not answer."""

import pytest

from gleaner.nodeagent.inventory import gpus, take_inventory


class FakeNvml:
    """NVML with these GPUs; `missing`: no driver; `broken`: a driver that fails."""

    class NVMLError(Exception):
        pass

    def __init__(self, names: list[str | bytes], *, missing: bool = False, broken: bool = False) -> None:
        self._names = names
        self._missing = missing
        self._broken = broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self._missing:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self._broken:
            raise self.NVMLError("GPU is lost")
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        return index

    def nvmlDeviceGetName(self, handle: object) -> str | bytes:
        assert isinstance(handle, int)
        return self._names[handle]


def test_gpus_are_named_from_bytes_or_text() -> None:
    nvml = FakeNvml(["NVIDIA H100 80GB HBM3", b"NVIDIA A100"])
    assert gpus(nvml) == ("NVIDIA H100 80GB HBM3", "NVIDIA A100")
    assert nvml.open == 0


def test_host_without_a_driver_has_no_gpus() -> None:
    assert gpus(FakeNvml(["ghost"], missing=True)) == ()


def test_driver_that_does_not_answer_is_closed() -> None:
    nvml = FakeNvml(["ghost"], broken=True)
    assert gpus(nvml) == ()
    assert nvml.open == 0


def test_cores_and_memory_are_of_this_host() -> None:
    inventory = take_inventory(FakeNvml(["NVIDIA L4"]), hostname=lambda: "here")
    assert inventory.hostname == "here"
    assert inventory.cores >= 1
    assert inventory.memory_bytes > 64 << 20
    assert inventory.gpus == ("NVIDIA L4",)


@pytest.mark.parametrize(("cores", "devices"), [("", 1), ("0-3", 1), ("0-31|32-63", 2), ("0|1|2|3", 4)])
def test_devices_without_gpus_are_the_groups_of_cores_of_sglang(cores: str, devices: int) -> None:
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": cores} if cores else {}
    assert take_inventory(FakeNvml([]), environment=environment).devices == devices


def test_devices_are_the_gpus_where_there_are_some() -> None:
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1|2|3"}
    assert take_inventory(FakeNvml(["NVIDIA L4"] * 2), environment=environment).devices == 2
