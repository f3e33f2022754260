"""Tortoise and Hare Guidance for ComfyUI: classifier-free guidance with fewer network evaluations."""

from .nodes import comfy_entrypoint

__all__ = ["comfy_entrypoint"]
