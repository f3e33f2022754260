"""Tortoise and Hare Guidance for ComfyUI: classifier-free guidance with fewer network evaluations."""

from .nodes import comfy_entrypoint

WEB_DIRECTORY = "./web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
