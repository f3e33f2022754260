"""Stable Diffusion 1.5 and XL, and what is built on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    DDPMScheduler,
    EulerDiscreteScheduler,
    KandinskyV22Pipeline,
    PNDMScheduler,
    StableDiffusionAdapterPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionPAGPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLControlNetPipeline,
    StableDiffusionXLPipeline,
    T2IAdapter,
    VQModel,
)

from tests.pipelines.families.case import GUIDANCE, WIDTH, Case, Prompts, lively, pairs, randn, unet, vae, without_text

TOKENS = 5
SMALL = {"height": 64, "width": 64}  # latents of 8 by 8 where there is no VAE to say otherwise
UNET = ("unet",)


def sd15(**config: Any) -> Case:
    """config: settings of the U-Net that differ."""
    return _text_to_image(unet=unet(**config))


def sd15_plms() -> Case:
    return _text_to_image(unet=unet(), scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1))


def _text_to_image(**components: Any) -> Case:
    pipe = StableDiffusionPipeline(**without_text(**components))
    return Case(pipe, lambda prompts: {**pairs(prompts, TOKENS), **SMALL}, networks=UNET)


SDXL: dict[str, Any] = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 2,
    "projection_class_embeddings_input_dim": 6 * 2 + WIDTH,
    "use_linear_projection": True,
}


def sdxl() -> Case:
    network = unet(**SDXL)
    pipe = StableDiffusionXLPipeline(
        vae=None,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=network,
        scheduler=EulerDiscreteScheduler(),
        add_watermarker=False,
    )

    def inputs(prompts: Prompts) -> dict[str, Any]:
        pooled = randn(prompts, WIDTH, salt=3)
        negative = randn(prompts, WIDTH, salt=4)
        return {
            **pairs(prompts, TOKENS),
            "pooled_prompt_embeds": pooled,
            "negative_pooled_prompt_embeds": negative,
            **SMALL,
        }

    return Case(pipe, inputs, networks=UNET)


def img2img(strength: float) -> Case:
    pipe = StableDiffusionImg2ImgPipeline(**without_text(unet=unet(), vae=vae()))

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**pairs(prompts, TOKENS), "image": randn(prompts, 3, 8, 8, salt=5).sigmoid(), "strength": strength}

    return Case(pipe, inputs, networks=UNET)


def inpaint() -> Case:
    """With a UNet of nine channels, which sees mask and masked picture as well."""
    pipe = StableDiffusionInpaintPipeline(**without_text(unet=unet(in_channels=9), vae=vae()))

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask = torch.zeros(len(prompts), 1, 8, 8)
        mask[..., 4:] = 1
        return {
            **pairs(prompts, TOKENS),
            "image": randn(prompts, 3, 8, 8, salt=5).sigmoid(),
            "mask_image": mask,
            "height": 8,
            "width": 8,
        }

    return Case(pipe, inputs, networks=UNET)


def _controlnet(seed: int = 1, **config: Any) -> Any:
    defaults: dict[str, Any] = {
        "block_out_channels": (WIDTH, WIDTH),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 2,
        "norm_num_groups": 4,
        "conditioning_embedding_out_channels": (4, 4, 4, 4),
    }
    return lively(ControlNetModel(**{**defaults, **config}), seed=seed)


def controlnet() -> Case:
    pipe = StableDiffusionControlNetPipeline(**without_text(unet=unet(), controlnet=_controlnet()))

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**pairs(prompts, TOKENS), "image": randn(prompts, 3, 64, 64, salt=5).sigmoid()}

    return Case(pipe, inputs, networks=UNET)


CONTROL_SCALES = [0.3, 0.9]


def two_pictures(prompts: Prompts) -> dict[str, Any]:
    """The arguments of a pipeline with two ControlNets."""
    pictures = [randn(prompts, 3, 64, 64, salt=salt).sigmoid() for salt in (5, 6)]
    return {"image": pictures, "controlnet_conditioning_scale": CONTROL_SCALES}


def two_controlnets() -> Case:
    pipe = StableDiffusionControlNetPipeline(**without_text(unet=unet(), controlnet=[_controlnet(1), _controlnet(2)]))
    return Case(pipe, lambda prompts: {**pairs(prompts, TOKENS), **two_pictures(prompts)}, networks=UNET)


def sdxl_two_controlnets() -> Case:
    case = sdxl()
    controlnets = [_controlnet(seed, **SDXL) for seed in (1, 2)]
    parts = {**case.pipe.components, "controlnet": controlnets}
    pipe = StableDiffusionXLControlNetPipeline(**parts, add_watermarker=False)
    plain = case.inputs

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**plain(prompts), **two_pictures(prompts)}

    return Case(pipe, inputs, networks=UNET)


def ip_adapter(count: int = 1) -> Case:
    """IP-Adapters loaded from their weights, with the pictures given as embeddings; several have a mask each."""
    case = sd15()
    network = case.pipe.unet
    network._load_ip_adapter_weights([_ip_adapter_weights(network, 10 * k) for k in range(count)])
    masks = [torch.zeros(1, 1, 64, 64) for _ in range(count)]
    for k, mask in enumerate(masks):
        mask[..., k * 32 : (k + 1) * 32] = 1

    def inputs(prompts: Prompts) -> dict[str, Any]:
        more = {"cross_attention_kwargs": {"ip_adapter_masks": masks}} if count > 1 else {}
        return {**pairs(prompts, TOKENS), **SMALL, **more}

    def switch(on: bool) -> dict[str, Any]:
        # the first half is for the negative prompts; with guidance off the pipeline wants the second half alone
        embeds = [randn([0, 1] if on else [1], 1, WIDTH, salt=8 + k) for k in range(count)]
        return {"guidance_scale": GUIDANCE if on else 1.0, "ip_adapter_image_embeds": embeds}

    return Case(case.pipe, inputs, switch, networks=UNET)


def _ip_adapter_weights(network: Any, salt: int) -> dict[str, Any]:
    projection = torch.nn.Linear(WIDTH, 4 * WIDTH)
    norm = torch.nn.LayerNorm(WIDTH)
    attention = {
        f"{place}.to_{part}_ip.weight": randn([place], WIDTH, WIDTH, salt=salt + own)[0] / WIDTH**0.5
        for place, name in enumerate(network.attn_processors)
        if name.endswith("attn2.processor")
        for own, part in ((6, "k"), (7, "v"))
    }
    projector = {
        **{f"proj.{name}": value for name, value in lively(projection, seed=salt).state_dict().items()},
        **{f"norm.{name}": value for name, value in norm.state_dict().items()},
    }
    return {"image_proj": projector, "ip_adapter": attention}


def t2i_adapter() -> Case:
    adapter = lively(T2IAdapter(in_channels=3, channels=[WIDTH, WIDTH], num_res_blocks=1, downscale_factor=8), seed=1)
    pipe = StableDiffusionAdapterPipeline(**without_text(unet=unet(), adapter=adapter))

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**pairs(prompts, TOKENS), "image": randn(prompts, 3, 64, 64, salt=5).sigmoid(), **SMALL}

    return Case(pipe, inputs, networks=UNET)


def pag() -> Case:
    """Perturbed-attention guidance: a third branch."""
    pipe = StableDiffusionPAGPipeline(**without_text(unet=unet()), pag_applied_layers=["mid"])
    return Case(pipe, lambda prompts: {**pairs(prompts, TOKENS), **SMALL}, networks=UNET)


def instruct_pix2pix() -> Case:
    """Three branches: text and picture, picture alone, neither."""
    pipe = StableDiffusionInstructPix2PixPipeline(**without_text(unet=unet(in_channels=8), vae=vae()))

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**pairs(prompts, TOKENS), "image": randn(prompts, 3, 8, 8, salt=5).sigmoid()}

    return Case(pipe, inputs, networks=UNET)


def kandinsky() -> Case:
    """The decoder of Kandinsky 2.2, with its stochastic scheduler and its learned variance."""
    network = unet(
        out_channels=8,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        addition_embed_type="image",
        encoder_hid_dim=WIDTH,
        encoder_hid_dim_type="image_proj",
        resnet_time_scale_shift="scale_shift",
    )
    movq = VQModel(block_out_channels=(4, 4), norm_num_groups=2, latent_channels=4, num_vq_embeddings=8)
    scheduler = DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, variance_type="learned_range", clip_sample=False, thresholding=False
    )
    pipe = KandinskyV22Pipeline(unet=network, scheduler=scheduler, movq=movq)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {
            "image_embeds": randn(prompts, WIDTH, salt=1),
            "negative_image_embeds": randn(prompts, WIDTH, salt=2),
            "height": 16,
            "width": 16,
        }

    return Case(pipe, inputs, networks=UNET)


FAMILIES = {
    "SD 1.5": sd15,
    "SD 1.5 with PLMS": sd15_plms,
    "SDXL": sdxl,
    **{f"SD img2img, strength {strength}": partial(img2img, strength) for strength in (0.35, 0.8, 1.0)},
    "SD inpaint": inpaint,
    "SD ControlNet": controlnet,
    "SD with two ControlNets": two_controlnets,
    "SDXL with two ControlNets": sdxl_two_controlnets,
    "SD IP-Adapter": ip_adapter,
    "SD with two masked IP-Adapters": partial(ip_adapter, 2),
    "SD T2I-Adapter": t2i_adapter,
    "SD PAG": pag,
    "InstructPix2Pix": instruct_pix2pix,
    "Kandinsky 2.2": kandinsky,
}
