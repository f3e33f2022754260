"""The weights of a Stable Diffusion pipeline in the layout of its authors, as in the files that artists share."""

from __future__ import annotations

from typing import Any

import torch

RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}


def single_file(pipe: Any) -> dict[str, torch.Tensor]:
    """All weights of the pipeline under their original names."""
    parts = {
        "model.diffusion_model.": _unet(pipe.unet),
        "first_stage_model.": _vae(pipe.vae),
        "cond_stage_model.transformer.": _text(pipe.text_encoder),
    }
    return {prefix + name: tensor.contiguous() for prefix, part in parts.items() for name, tensor in part.items()}


def _text(encoder: Any) -> dict[str, torch.Tensor]:
    """The released files have the prefix that older releases of transformers used."""
    return {f"text_model.{name.removeprefix('text_model.')}": value for name, value in encoder.state_dict().items()}


def _renamed(state: dict[str, torch.Tensor], homes: dict[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in state.items():
        old = max((old for old in homes if name.startswith(old + ".")), key=len)
        found[homes[old] + name[len(old) :]] = tensor
    assert len(found) == len(state)
    return found


def _unet(unet: Any) -> dict[str, torch.Tensor]:
    homes = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "conv_in": "input_blocks.0.0",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
        "mid_block.attentions.0": "middle_block.1",
    }
    resnets = {"mid_block.resnets.0": "middle_block.0", "mid_block.resnets.1": "middle_block.2"}
    number = 1
    for i, block in enumerate(unet.down_blocks):
        for j in range(len(block.resnets)):
            resnets[f"down_blocks.{i}.resnets.{j}"] = f"input_blocks.{number}.0"
            homes[f"down_blocks.{i}.attentions.{j}"] = f"input_blocks.{number}.1"
            number += 1
        if block.downsamplers:
            homes[f"down_blocks.{i}.downsamplers.0.conv"] = f"input_blocks.{number}.0.op"
            number += 1
    number = 0
    for i, block in enumerate(unet.up_blocks):
        for j in range(len(block.resnets)):
            resnets[f"up_blocks.{i}.resnets.{j}"] = f"output_blocks.{number}.0"
            homes[f"up_blocks.{i}.attentions.{j}"] = f"output_blocks.{number}.1"
            number += 1
        if block.upsamplers:
            place = 2 if hasattr(block, "attentions") else 1
            homes[f"up_blocks.{i}.upsamplers.0.conv"] = f"output_blocks.{number - 1}.{place}.conv"
    homes |= {f"{old}.{part}": f"{new}.{name}" for old, new in resnets.items() for part, name in RESNET.items()}
    return _renamed(unet.state_dict(), homes)


def _vae(vae: Any) -> dict[str, torch.Tensor]:
    homes = {"quant_conv": "quant_conv", "post_quant_conv": "post_quant_conv"}
    count = len(vae.encoder.down_blocks)
    for side in ("encoder", "decoder"):
        homes |= {f"{side}.conv_in": f"{side}.conv_in", f"{side}.conv_out": f"{side}.conv_out"}
        homes |= {f"{side}.conv_norm_out": f"{side}.norm_out"}
        homes |= {f"{side}.mid_block.resnets.{i}": f"{side}.mid.block_{i + 1}" for i in (0, 1)}
        attention = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
        homes |= {f"{side}.mid_block.attentions.0.{a}": f"{side}.mid.attn_1.{b}" for a, b in attention.items()}
        for i in range(count):
            blocks, old, at = ("down_blocks", "down", i) if side == "encoder" else ("up_blocks", "up", count - 1 - i)
            for j in range(len(getattr(vae, side).get_submodule(f"{blocks}.{i}.resnets"))):
                homes[f"{side}.{blocks}.{i}.resnets.{j}"] = f"{side}.{old}.{at}.block.{j}"
                shortcut = f"{side}.{old}.{at}.block.{j}.nin_shortcut"
                homes[f"{side}.{blocks}.{i}.resnets.{j}.conv_shortcut"] = shortcut
            sampler = "downsample" if side == "encoder" else "upsample"
            homes[f"{side}.{blocks}.{i}.{sampler}rs.0.conv"] = f"{side}.{old}.{at}.{sampler}.conv"
    state = _renamed(vae.state_dict(), homes)
    linear = [name for name in state if ".attn_1." in name and name.endswith("weight") and ".norm." not in name]
    return state | {name: state[name][:, :, None, None] for name in linear}  # convolutions of one pixel, originally
