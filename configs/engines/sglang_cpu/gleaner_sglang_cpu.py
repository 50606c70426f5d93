"""SGLang's plug-in entry point for this platform.

Imports nothing, because every process of SGLang calls it.
"""


def activate() -> str:
    """The class of the platform, which SGLang imports when it needs it."""
    return "gleaner_sglang_platform.TorchCpuPlatform"
