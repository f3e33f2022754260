"""thg inside serving engines: plug-ins for SGLang-Diffusion and vLLM-Omni, and what they share.

The engines load `thg.serving.sglang.register` and `thg.serving.vllm_omni.register` by their entry points in each of
their processes; the environment variable THG_SERVING switches them on.
"""
