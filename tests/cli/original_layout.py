"""The weights of Stable Diffusion 1.5, XL and 3 in the layout of their authors, as in the files that artists share."""

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
    """All weights of the pipeline under their original names; of Stable Diffusion 3 those without text encoders."""
    parts = {"first_stage_model.": _vae(pipe.vae)}
    if hasattr(pipe, "transformer"):
        parts["model.diffusion_model."] = _sd3(pipe.transformer)
    elif hasattr(pipe, "text_encoder_2"):
        parts["model.diffusion_model."] = _unet(pipe.unet)
        parts["conditioner.embedders.0.transformer."] = _text(pipe.text_encoder)
        parts["conditioner.embedders.1.model."] = _open_clip(pipe.text_encoder_2)
    else:
        parts["model.diffusion_model."] = _unet(pipe.unet)
        parts["cond_stage_model.transformer."] = _text(pipe.text_encoder)
    return {prefix + name: tensor.contiguous() for prefix, part in parts.items() for name, tensor in part.items()}


def _text(encoder: Any) -> dict[str, torch.Tensor]:
    """The released files have the prefix that older releases of transformers used."""
    return {f"text_model.{name.removeprefix('text_model.')}": value for name, value in encoder.state_dict().items()}


def _open_clip(encoder: Any) -> dict[str, torch.Tensor]:
    state = encoder.state_dict()
    found = {
        "positional_embedding": state.pop("text_model.embeddings.position_embedding.weight"),
        "token_embedding.weight": state.pop("text_model.embeddings.token_embedding.weight"),
        "text_projection": state.pop("text_projection.weight").T,
    }
    for i, layer in enumerate(encoder.text_model.encoder.layers):
        block = f"transformer.resblocks.{i}"
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(layer.self_attn, f"{part}_proj"), kind) for part in "qkv"]
            found[f"{block}.attn.in_proj_{kind}"] = torch.cat([part.data for part in parts])
    homes = {"text_model.final_layer_norm": "ln_final"}
    parts = {"self_attn.out_proj": "attn.out_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2"}
    parts |= {"mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    for i in range(len(encoder.text_model.encoder.layers)):
        old, new = f"text_model.encoder.layers.{i}", f"transformer.resblocks.{i}"
        homes |= {f"{old}.{a}": f"{new}.{b}" for a, b in parts.items()}
    rest = {name: value for name, value in state.items() if name.split(".")[-2] not in ("q_proj", "k_proj", "v_proj")}
    return found | _renamed(rest, homes)


def _sd3(transformer: Any) -> dict[str, torch.Tensor]:
    state, found = transformer.state_dict(), {}
    homes = {
        "pos_embed.pos_embed": "pos_embed",
        "pos_embed.proj": "x_embedder.proj",
        "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
        "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
        "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
        "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
        "context_embedder": "context_embedder",
        "norm_out.linear": "final_layer.adaLN_modulation.1",
        "proj_out": "final_layer.linear",
    }
    swapped = ["final_layer.adaLN_modulation.1"]
    last = len(transformer.transformer_blocks) - 1
    for i in range(last + 1):
        old, new = f"transformer_blocks.{i}", f"joint_blocks.{i}"
        for side, parts, out, norm, ff in (
            ("x_block", ("to_q", "to_k", "to_v"), "to_out.0", "norm1", "ff"),
            ("context_block", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", "norm1_context", "ff_context"),
        ):
            for kind in ("weight", "bias"):
                found[f"{new}.{side}.attn.qkv.{kind}"] = torch.cat(
                    [state.pop(f"{old}.attn.{part}.{kind}") for part in parts]
                )
            homes |= {
                f"{old}.attn.{out}": f"{new}.{side}.attn.proj",
                f"{old}.{norm}.linear": f"{new}.{side}.adaLN_modulation.1",
                f"{old}.{ff}.net.0.proj": f"{new}.{side}.mlp.fc1",
                f"{old}.{ff}.net.2": f"{new}.{side}.mlp.fc2",
            }
        if i == last:
            swapped.append(f"{new}.context_block.adaLN_modulation.1")
    found |= _renamed(state, homes)
    for home in swapped:  # originally shift before scale
        for kind in ("weight", "bias"):
            found[f"{home}.{kind}"] = torch.cat(found[f"{home}.{kind}"].chunk(2)[::-1])
    return found


def _renamed(state: dict[str, torch.Tensor], homes: dict[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in state.items():
        old = max((old for old in homes if f"{name}.".startswith(f"{old}.")), key=len)
        found[homes[old] + name[len(old) :]] = tensor
    assert len(found) == len(state)
    return found


def _unet(unet: Any) -> dict[str, torch.Tensor]:
    homes = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "add_embedding.linear_1": "label_emb.0.0",
        "add_embedding.linear_2": "label_emb.0.2",
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
