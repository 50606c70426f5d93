"""SGLang platform: a CPU with PyTorch's own kernels.

SGLang's own CPU engine needs a compiled kernel library that no package index has; this one needs none. It is
slow and exact, which suits tests. Source: the interface in sglang/srt/platforms of 0.5.23.
"""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """See the module."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """PyTorch's scaled dot product attention."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """Selects the implementation of SGLang's own operators: the one in Python."""
        return "native"

    def is_pin_memory_available(self, device: object = None) -> bool:
        """There is no accelerator to copy to."""
        return False
