"""How each diffusers pipeline lays out its guidance branches, so that a branch is known and never guessed.

`Batched` pipelines send all branches through the network in one call, stacked along the batch; `Sequential` ones call
it once per branch, the conditional one first. `Delegates` run other pipelines. What cannot be split correctly is
`Refused`, with the reason. The lists were read off the source of diffusers 0.42 and checked by running the pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from thg.adapter.classes import original_class
from thg.errors import UnsupportedPipelineError

DENOISERS = ("unet", "transformer", "prior", "decoder")
"""The names under which pipelines have their denoising network."""


@dataclass(frozen=True)
class Batched:
    """All branches in one call.

    branches: their order along the batch. predicted: those that a leap leaves out.
    """

    branches: tuple[str, ...] = ("uncond", "cond")
    predicted: tuple[str, ...] = ("uncond",)
    denoisers: tuple[str, ...] = DENOISERS

    def branches_of(self, pipe: Any) -> tuple[str, ...]:
        """The branches in the current call, with guidance on."""
        return self.branches

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        """Around a call of the network that leaves the predicted branches out."""
        yield


@dataclass(frozen=True)
class Perturbed(Batched):
    """Perturbed-attention guidance: a third branch, whose attention processors depend on what is in the batch."""

    branches: tuple[str, ...] = ("uncond", "cond", "perturbed")

    def branches_of(self, pipe: Any) -> tuple[str, ...]:
        return self.branches if pipe.do_perturbed_attention_guidance else self.branches[:2]

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        if not pipe.do_perturbed_attention_guidance:
            yield
            return
        layers = pipe.pag_applied_layers
        pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=False)
        try:
            yield
        finally:
            pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=True)


@dataclass(frozen=True)
class Sequential:
    """One call per branch.

    branches: their order. unconditional: a network that serves the unconditional branch alone, if there is one.
    rescales: the pipeline multiplies the network's output by a factor that changes from step to step.
    """

    denoisers: tuple[str, ...] = ("transformer", "transformer_2")
    unconditional: str | None = None
    branches: tuple[str, str] = ("cond", "uncond")
    rescales: bool = False


@dataclass(frozen=True)
class Delegates:
    """Runs other pipelines; the named attributes are those whose guidance is worth skipping."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Cannot be supported; says why."""

    why: str


Layout = Batched | Sequential | Delegates | Refused

_LAYOUTS: dict[str, Layout] = {}


def _register(layout: Layout, names: str) -> None:
    for name in names.split():
        _LAYOUTS[name] = layout


_register(
    Batched(),
    """
    AllegroPipeline AltDiffusionImg2ImgPipeline AltDiffusionPipeline AnimateDiffControlNetPipeline AnimateDiffPipeline
    AnimateDiffSDXLPipeline AnimateDiffSparseControlNetPipeline AnimateDiffVideoToVideoControlNetPipeline
    AnimateDiffVideoToVideoPipeline AnyFlowPipeline AudioLDM2Pipeline AudioLDMPipeline AuraFlowPipeline
    BlipDiffusionControlNetPipeline BlipDiffusionPipeline BriaFiboEditPipeline BriaFiboPipeline BriaPipeline
    CogVideoXFunControlPipeline CogVideoXImageToVideoPipeline CogVideoXPipeline CogVideoXVideoToVideoPipeline
    CogView3PlusPipeline ConsisIDPipeline EasyAnimateControlPipeline EasyAnimateInpaintPipeline EasyAnimatePipeline
    ErnieImagePipeline HiDreamImagePipeline HunyuanDiTControlNetPipeline HunyuanDiTPipeline I2VGenXLPipeline
    IFImg2ImgPipeline IFImg2ImgSuperResolutionPipeline IFInpaintingPipeline IFInpaintingSuperResolutionPipeline
    IFPipeline IFSuperResolutionPipeline JoyImageEditPlusPipeline Kandinsky3Img2ImgPipeline Kandinsky3Pipeline
    KandinskyImg2ImgPipeline KandinskyInpaintPipeline KandinskyPipeline KandinskyPriorPipeline
    KandinskyV22ControlnetImg2ImgPipeline KandinskyV22ControlnetPipeline KandinskyV22Img2ImgPipeline
    KandinskyV22InpaintPipeline KandinskyV22Pipeline KandinskyV22PriorEmb2EmbPipeline KandinskyV22PriorPipeline
    KolorsImg2ImgPipeline KolorsPipeline LDMTextToImagePipeline LTX2ConditionPipeline LTX2HDRPipeline
    LTX2ImageToVideoPipeline LTX2InContextPipeline LTX2Pipeline LTXConditionPipeline LTXImageToVideoPipeline
    LTXPipeline LattePipeline MochiPipeline MusicLDMPipeline PIAPipeline PRXPipeline PRXPixelPipeline
    PaintByExamplePipeline PixArtAlphaPipeline PixArtSigmaPipeline SanaControlNetPipeline SanaImageToVideoPipeline
    SanaPipeline SanaVideoPipeline SanaWMPipeline ShapEImg2ImgPipeline ShapEPipeline StableAudio3Pipeline
    StableAudioPipeline StableDiffusion3ControlNetInpaintingPipeline StableDiffusion3ControlNetPipeline
    StableDiffusion3Img2ImgPipeline StableDiffusion3InpaintPipeline StableDiffusion3Pipeline
    StableDiffusionAdapterPipeline StableDiffusionControlNetImg2ImgPipeline StableDiffusionControlNetInpaintPipeline
    StableDiffusionControlNetPipeline StableDiffusionControlNetXSPipeline StableDiffusionDepth2ImgPipeline
    StableDiffusionGLIGENPipeline StableDiffusionImageVariationPipeline StableDiffusionImg2ImgPipeline
    StableDiffusionInpaintPipeline StableDiffusionInpaintPipelineLegacy StableDiffusionLDM3DPipeline
    StableDiffusionLatentUpscalePipeline StableDiffusionModelEditingPipeline StableDiffusionPipeline
    StableDiffusionUpscalePipeline StableDiffusionXLAdapterPipeline StableDiffusionXLControlNetImg2ImgPipeline
    StableDiffusionXLControlNetInpaintPipeline StableDiffusionXLControlNetPipeline
    StableDiffusionXLControlNetUnionImg2ImgPipeline StableDiffusionXLControlNetUnionInpaintPipeline
    StableDiffusionXLControlNetUnionPipeline StableDiffusionXLControlNetXSPipeline StableDiffusionXLImg2ImgPipeline
    StableDiffusionXLInpaintPipeline StableDiffusionXLPipeline StableUnCLIPImg2ImgPipeline
    StableVideoDiffusionPipeline TextToVideoSDPipeline VideoToVideoSDPipeline
    """,
)
_register(
    Batched(branches=("cond", "uncond")),
    """
    AceStepPipeline DiTPipeline LuminaPipeline StableCascadeDecoderPipeline StableCascadePriorPipeline
    WuerstchenDecoderPipeline WuerstchenPriorPipeline ZImageControlNetInpaintPipeline ZImageControlNetPipeline
    ZImageImg2ImgPipeline ZImageInpaintPipeline ZImageOmniPipeline ZImagePipeline
    """,
)
_register(
    Batched(branches=("cond", "image", "uncond"), predicted=("image", "uncond")),
    "StableDiffusionInstructPix2PixPipeline StableDiffusionXLInstructPix2PixPipeline",
)
_register(
    Perturbed(),
    """
    AnimateDiffPAGPipeline HunyuanDiTPAGPipeline KolorsPAGPipeline PixArtSigmaPAGPipeline SanaPAGPipeline
    StableDiffusion3PAGImg2ImgPipeline StableDiffusion3PAGPipeline StableDiffusionControlNetPAGInpaintPipeline
    StableDiffusionControlNetPAGPipeline StableDiffusionPAGImg2ImgPipeline StableDiffusionPAGInpaintPipeline
    StableDiffusionPAGPipeline StableDiffusionXLControlNetPAGImg2ImgPipeline StableDiffusionXLControlNetPAGPipeline
    StableDiffusionXLPAGImg2ImgPipeline StableDiffusionXLPAGInpaintPipeline StableDiffusionXLPAGPipeline
    """,
)
_register(
    Sequential(),
    """
    BriaFibo2Pipeline ChromaImg2ImgPipeline ChromaInpaintPipeline ChromaPipeline ChronoEditPipeline
    CogView4ControlPipeline CogView4Pipeline
    Cosmos2_5_PredictBasePipeline Cosmos2_5_TransferPipeline Cosmos3OmniPipeline CosmosTextToWorldPipeline
    CosmosVideoToWorldPipeline
    Flux2KleinInpaintPipeline Flux2KleinPipeline FluxControlNetPipeline FluxImg2ImgPipeline
    FluxInpaintPipeline FluxKontextInpaintPipeline FluxKontextPipeline FluxPipeline GlmImagePipeline HeliosPipeline
    HunyuanImagePipeline HunyuanImageRefinerPipeline HunyuanSkyreelsImageToVideoPipeline
    HunyuanVideo15ImageToVideoPipeline HunyuanVideo15Pipeline HunyuanVideoFramepackPipeline
    HunyuanVideoImageToVideoPipeline HunyuanVideoPipeline JoyImageEditPipeline Kandinsky5I2IPipeline
    Kandinsky5I2VPipeline Kandinsky5T2IPipeline Kandinsky5T2VPipeline Kandinsky6TI2VAPipeline Krea2Pipeline
    LongCatAudioDiTPipeline LongCatImageEditPipeline LongCatImagePipeline LucyEditPipeline Lumina2Pipeline
    MotifVideoImage2VideoPipeline MotifVideoPipeline NucleusMoEImagePipeline OvisImagePipeline QwenImage21Pipeline
    QwenImageControlNetInpaintPipeline QwenImageControlNetPipeline QwenImageEditInpaintPipeline QwenImageEditPipeline
    QwenImageEditPlusPipeline QwenImageImg2ImgPipeline QwenImageInpaintPipeline QwenImageLayeredPipeline
    QwenImagePipeline SkyReelsV2DiffusionForcingImageToVideoPipeline SkyReelsV2DiffusionForcingPipeline
    SkyReelsV2DiffusionForcingVideoToVideoPipeline SkyReelsV2ImageToVideoPipeline SkyReelsV2Pipeline WanAnimatePipeline
    WanImageToVideoPipeline WanPipeline WanVACEPipeline WanVideoToVideoPipeline
    """,
)
_register(Sequential(rescales=True), "Cosmos2TextToImagePipeline Cosmos2VideoToWorldPipeline")
_register(Sequential(denoisers=("transformer",), unconditional="unconditional_transformer"), "Ideogram4Pipeline")

# The prior of Kandinsky costs little beside its decoder; it can be enabled by itself: thg.enable(pipe.prior_pipe).
_register(
    Delegates(("decoder_pipe",)),
    """
    KandinskyCombinedPipeline KandinskyImg2ImgCombinedPipeline KandinskyInpaintCombinedPipeline
    KandinskyV22CombinedPipeline KandinskyV22Img2ImgCombinedPipeline KandinskyV22InpaintCombinedPipeline
    """,
)
_register(Delegates(("prior_pipe", "decoder_pipe")), "StableCascadeCombinedPipeline WuerstchenCombinedPipeline")

_DISTILLED = "it is distilled: its network takes the guidance scale as an input and runs once a step"
_register(
    Refused(_DISTILLED),
    """
    DreamLiteMobilePipeline Flux2KleinKVPipeline Flux2Pipeline FluxControlImg2ImgPipeline FluxControlInpaintPipeline
    FluxControlNetImg2ImgPipeline FluxControlNetInpaintPipeline FluxControlPipeline FluxFillPipeline LTX2DFRPipeline
    LTX2DFRTemporalRefinePipeline LatentConsistencyModelImg2ImgPipeline LatentConsistencyModelPipeline
    SanaSprintImg2ImgPipeline SanaSprintPipeline VisualClozeGenerationPipeline VisualClozePipeline
    """,
)
_register(
    Refused("it has no classifier-free guidance: its network runs once a step already"),
    """
    AudioDiffusionPipeline ConsistencyModelPipeline DDIMPipeline DDPMPipeline DanceDiffusionPipeline
    DiffusionGemmaPipeline FluxPriorReduxPipeline Kandinsky6SRPipeline KarrasVePipeline LDMPipeline
    LDMSuperResolutionPipeline LLaDA2Pipeline LTX2LatentUpsamplePipeline LTX2VideoDiffusionDecodePipeline
    LTXLatentUpsamplePipeline MarigoldDepthPipeline MarigoldIntrinsicsPipeline MarigoldNormalsPipeline PNDMPipeline
    RFD4ProteinaPipeline RePaintPipeline ScoreSdeVePipeline SpectrogramDiffusionPipeline
    StableAudio3AudioToAudioPipeline StableAudio3InpaintPipeline
    """,
)
_register(
    Refused("its unconditional output is used by more than the guidance formula (extra passes in each step)"),
    """
    StableDiffusionAttendAndExcitePipeline StableDiffusionDiffEditPipeline StableDiffusionGLIGENTextImagePipeline
    StableDiffusionPix2PixZeroPipeline StableDiffusionSAGPipeline
    """,
)
_register(
    Refused("its edit branches are guided one by one, with masks or momentum of their own"),
    """
    CycleDiffusionPipeline DreamLitePipeline LEditsPPPipelineStableDiffusion LEditsPPPipelineStableDiffusionXL
    OmniGenPipeline SemanticStableDiffusionPipeline StableDiffusionPipelineSafe UniDiffuserPipeline
    """,
)
_register(
    Refused("one call mixes views or timesteps, so that a step has no single guidance term"),
    """
    StableDiffusionPanoramaPipeline StableDiffusionParadigmsPipeline TextToVideoZeroPipeline
    TextToVideoZeroSDXLPipeline
    """,
)
_register(
    Refused("it samples tokens, not a diffusion ODE, and its guidance works on logits"),
    "AmusedImg2ImgPipeline AmusedInpaintPipeline AmusedPipeline VQDiffusionPipeline",
)
_register(
    Refused("it runs several guided networks with schedulers of their own in one call"),
    """
    StableUnCLIPPipeline UnCLIPImageVariationPipeline UnCLIPPipeline VersatileDiffusionDualGuidedPipeline
    VersatileDiffusionImageVariationPipeline VersatileDiffusionPipeline VersatileDiffusionTextToImagePipeline
    """,
)
_register(
    Refused("it samples in chunks or stages that carry a cache of both branches from call to call"),
    "AnyFlowFARPipeline HeliosPyramidPipeline LTXI2VLongMultiPromptPipeline",
)


def layout_of(pipe: Any) -> Batched | Sequential | Delegates:
    """The layout of a pipeline; an error that says why if it cannot be supported."""
    cls = original_class(pipe)
    for base in cls.__mro__:
        layout = _LAYOUTS.get(base.__name__)
        if layout is None or not base.__module__.startswith("diffusers."):
            continue
        if cls.__call__ is not base.__call__:
            break  # a subclass with a loop of its own may lay out its branches in another way
        if isinstance(layout, Refused):
            raise UnsupportedPipelineError(f"thg cannot accelerate {cls.__name__}: {layout.why}")
        return layout
    raise UnsupportedPipelineError(
        f"thg does not know how {cls.__name__} lays out its guidance branches. If it stacks them in one call, "
        "unconditional first, write thg.enable(pipe, layout=thg.Batched()); if it calls the network twice, "
        "conditional first, thg.enable(pipe, layout=thg.Sequential())"
    )


def known_layouts() -> dict[str, Layout]:
    """Each pipeline class of diffusers that thg knows of, with its layout (for the documentation)."""
    return dict(_LAYOUTS)
