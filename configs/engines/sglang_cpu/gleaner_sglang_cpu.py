"""SGLang's entry point for platforms that are not its own. Imports nothing: every process of SGLang asks."""


def activate() -> str:
    """The class of the platform, which SGLang imports when it needs it."""
    return "gleaner_sglang_platform.TorchCpuPlatform"
