"""A loader of the shipped models for the server of the tests: in place of a checkpoint, which would be too large."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import ComfyExtension, io
from shipped import Shipped

SIZE = 512  # of pictures, enlarged for a page


class Clip:
    """The part of ComfyUI's CLIP that its text nodes use."""

    def __init__(self, shipped: Shipped) -> None:
        self._shipped = shipped

    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[Any]:
        return self._shipped.encode(tokens)


class Vae:
    """The part of ComfyUI's VAE that decoding uses: pictures as (n, height, width, 3)."""

    def __init__(self, shipped: Shipped) -> None:
        self._shipped = shipped

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        pictures = torch.nn.functional.interpolate(self._shipped.decode(latents), size=SIZE)
        return pictures.movedim(1, -1).expand(-1, -1, -1, 3)


class LoadShippedModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LoadShippedModel",
            display_name="Load Shipped Model",
            category="tests",
            inputs=[io.Combo.Input("name", options=["emoji", "eps", "flow"])],
            outputs=[io.Model.Output(), io.Clip.Output(), io.Vae.Output()],
        )

    @classmethod
    def execute(cls, name: str) -> io.NodeOutput:
        shipped = Shipped.load(name)
        return io.NodeOutput(shipped.model, Clip(shipped), Vae(shipped))


class Loader(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoadShippedModel]


async def comfy_entrypoint() -> Loader:
    return Loader()
