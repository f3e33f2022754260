"""How a pipeline lays out its guidance branches.

`Batched` pipelines send all branches through the network in one call, stacked along the batch; `Sequential` ones call
it once per branch. This is inferred from the first guided step (`learn`). The names in this file are exceptions, each
with its reason: pipelines whose step is not a combination of their outputs, `Delegates` that run other pipelines, and
those that are `Refused` because they have no guidance to skip.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from thg.adapter.classes import original_class

DENOISERS = ("unet", "transformer", "prior", "decoder")
"""The usual names of the denoising network in pipelines."""


@dataclass(frozen=True)
class Batched:
    """All branches in one call.

    branches: their order along the batch. predicted: those that a leap skips.
    explained: whether the input of the scheduler is a combination of their outputs, so that it can be checked.
    """

    branches: tuple[str, ...] = ("uncond", "cond")
    predicted: tuple[str, ...] = ("uncond",)
    denoisers: tuple[str, ...] = DENOISERS
    explained: bool = True

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of all networks that run a branch."""
        return self.denoisers

    @functools.cached_property
    def cond(self) -> int:
        """The place of the conditional branch."""
        return self.branches.index("cond")

    @functools.cached_property
    def skipped(self) -> list[int]:
        """The places of the predicted branches."""
        return [self.branches.index(name) for name in self.predicted]

    @functools.cached_property
    def kept(self) -> list[int]:
        """The places of the branches that a leap evaluates."""
        return [place for place in range(len(self.branches)) if place not in self.skipped]

    def at_present(self, pipe: Any) -> Batched:
        """The layout of the current call, with guidance on."""
        return self

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        """A context for a network call without the predicted branches."""
        yield


@dataclass(frozen=True)
class Perturbed(Batched):
    """Perturbed-attention guidance: a third branch, whose attention processors depend on the branches in the batch."""

    branches: tuple[str, ...] = ("uncond", "cond", "perturbed")
    explained: bool = False  # the third branch is optional

    def at_present(self, pipe: Any) -> Batched:
        return self if pipe.do_perturbed_attention_guidance else Batched(self.branches[:2])

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        layers = pipe.pag_applied_layers
        pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=False)
        try:
            yield
        finally:
            pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=True)


@dataclass(frozen=True)
class Sequential:
    """One call per branch.

    branches: their order. unconditional: a separate network for the unconditional branch, if there is one.
    rescales: the pipeline multiplies the network's output by a factor that changes from step to step.
    """

    denoisers: tuple[str, ...] = ("transformer", "transformer_2")
    unconditional: str | None = None
    branches: tuple[str, str] = ("cond", "uncond")
    rescales: bool = False
    explained: bool = True

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of all networks that run a branch."""
        return self.denoisers if self.unconditional is None else (*self.denoisers, self.unconditional)


@dataclass(frozen=True)
class Delegates:
    """Runs other pipelines; the named attributes are those whose guidance is accelerated."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Not supported, with the reason."""

    why: str


Layout = Batched | Sequential | Delegates | Refused

_LAYOUTS: dict[str, Layout] = {}


def _register(layout: Layout, names: str) -> None:
    for name in names.split():
        _LAYOUTS[name] = layout


# Guidance that is not a combination of its two outputs: adaptive projected guidance with a momentum.
_register(Batched(branches=("cond", "uncond"), explained=False), "AceStepPipeline")
# The scheduler's input is not a combination of the outputs of one step: it includes tokens of reference pictures or
# given frames, the step is made in the space of the denoised sample, or there is no scheduler.
_register(Batched(explained=False), "LTX2InContextPipeline")
_register(Sequential(explained=False), "CosmosTextToWorldPipeline CosmosVideoToWorldPipeline LongCatAudioDiTPipeline")
_register(Sequential(rescales=True, explained=False), "Cosmos2VideoToWorldPipeline")
# They step with copies of their scheduler, one for each frame.
_register(
    Sequential(explained=False),
    """
    SkyReelsV2DiffusionForcingPipeline SkyReelsV2DiffusionForcingImageToVideoPipeline
    SkyReelsV2DiffusionForcingVideoToVideoPipeline
    """,
)
# So that the corrector is already off in the first run.
_register(Sequential(rescales=True), "Cosmos2TextToImagePipeline")
# With random weights, as in tests, the prompt has no effect on these: both branches give the same output.
_register(
    Batched(),
    "PRXPipeline PRXPixelPipeline SanaControlNetPipeline SanaImageToVideoPipeline SanaPipeline SanaVideoPipeline",
)
_register(
    Sequential(),
    """
    Cosmos2_5_PredictBasePipeline Cosmos2_5_TransferPipeline Kandinsky5I2IPipeline Kandinsky5I2VPipeline
    Kandinsky5T2IPipeline Kandinsky5T2VPipeline NucleusMoEImagePipeline
    """,
)

# Kandinsky's prior costs little compared with its decoder; it can be enabled separately: thg.enable(pipe.prior_pipe).
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
    StableDiffusionAttendAndExcitePipeline StableDiffusionGLIGENTextImagePipeline StableDiffusionPix2PixZeroPipeline
    StableDiffusionSAGPipeline
    """,
)
_register(
    Refused("its edit branches are guided one by one, with masks or momentum of their own"),
    """
    CycleDiffusionPipeline LEditsPPPipelineStableDiffusion LEditsPPPipelineStableDiffusionXL
    SemanticStableDiffusionPipeline StableDiffusionPipelineSafe UniDiffuserPipeline
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


def layout_of(pipe: Any) -> Layout | None:
    """The layout of a pipeline, by its class; None if it has to be inferred."""
    cls = original_class(pipe)
    for base in cls.__mro__:
        layout = _LAYOUTS.get(base.__name__)
        if layout is not None and base.__module__.startswith("diffusers.") and cls.__call__ is base.__call__:
            return layout
    return Perturbed() if hasattr(cls, "_set_pag_attn_processor") else None


def known_layouts() -> dict[str, Layout]:
    """The pipeline classes of diffusers in this table, with their layouts (for the documentation)."""
    return dict(_LAYOUTS)
