"""vLLM-Omni on a CPU, for its test: a platform, by the engine's entry points, which install.py writes.

vLLM has a platform for CPUs; vLLM-Omni has none. Its attention chooses a method by the platform's name, and it warms up
with a picture of 512 pixels, for which the shipped model is not made.
"""

from __future__ import annotations

PLATFORM = f"{__name__}.CpuOmniPlatform"
MEMORY = 8 << 30  # bytes; nothing here needs a true number


def platform() -> str:
    """The entry point `vllm_omni.platform_plugins`."""
    return PLATFORM


def prepare() -> None:
    """The entry point `vllm_omni.general_plugins`."""
    import torch
    from vllm_omni.diffusion.attention.backends.sdpa import SDPAImpl
    from vllm_omni.diffusion.diffusion_engine import DiffusionEngine

    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")  # several workers ask for it
    torch.accelerator.synchronize = lambda *args, **kwargs: None  # if it raises, the engine believes its device broken
    SDPAImpl.forward = SDPAImpl.forward_cuda  # torch's own attention, which runs anywhere
    DiffusionEngine.run_startup_warmup = lambda engine: None


def __getattr__(name):
    """The class, when the engine asks for it: its bases cannot be imported before a platform is chosen."""
    if name != "CpuOmniPlatform":
        raise AttributeError(name)
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

    class CpuOmniPlatform(OmniPlatform, CpuPlatform):
        _omni_enum = OmniPlatformEnum.OOT
        dist_backend = "gloo"

        @classmethod
        def get_diffusion_attn_backend_cls(cls, selected_backend, head_size, allow_trtllm_default=False):
            return "vllm_omni.diffusion.attention.backends.sdpa.SDPABackend"

        @classmethod
        def supports_torch_inductor(cls):
            return False

        @classmethod
        def get_torch_device(cls, local_rank=None):
            return torch.device("cpu")

        @classmethod
        def get_device_count(cls):
            return 2

        @classmethod
        def get_device_memory(cls, device=None):
            return MEMORY, MEMORY

        @classmethod
        def _memory(cls, *args, **kwargs):
            return MEMORY

        @classmethod
        def _nothing(cls, *args, **kwargs):
            return None

        @classmethod
        def _zero(cls, *args, **kwargs):
            return 0

        get_free_memory = get_device_total_memory = _memory
        synchronize = empty_cache = reset_peak_memory_stats = set_device = _nothing
        max_memory_allocated = max_memory_reserved = get_current_memory_usage = _zero

    return CpuOmniPlatform
