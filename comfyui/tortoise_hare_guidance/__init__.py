"""Tortoise and Hare Guidance for ComfyUI: classifier-free guidance with about a quarter fewer network evaluations."""

from .nodes import comfy_entrypoint

__all__ = ["comfy_entrypoint"]
