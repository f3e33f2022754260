"""Writes src/thg/pipelines/layouts.json: how diffusers' own pipelines lay out their guidance branches.

    python docs/make_layouts.py [CHECK.json]

The order of the branches is read from the source of the installed diffusers: the names to which a pipeline assigns the
halves of one output, or a call for each branch. What the source does not show is listed below, with the reason. A run
checks its layout at the first guided step, so that a wrong row of the table makes a run plain CFG and no worse.

CHECK.json: optional; the output of a compatibility check, a list of objects with `pipeline` and `checked` (what
`thg.summary(pipe).checked` said after a run). It is an error if a run has shown another layout than the table.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import diffusers

TABLE = Path(__file__).parents[1] / "src" / "thg" / "pipelines" / "layouts.json"
PIPELINES = Path(diffusers.__file__).parent / "pipelines"
DENOISERS = r"\b(?:self\.(?:transformer|unet|prior|decoder|transformer_2)|current_model)\("
HALVES = r"(\w+)\s*,\s*(\w+)\s*=\s*\(?\s*[\w\.\[\]: ,]+?\.(?:float\(\)\.)?(?:chunk|split)\("
WITHOUT = re.compile("uncond|neg|null")

UNCOND_FIRST, COND_FIRST = ["uncond", "cond"], ["cond", "uncond"]
Row = tuple[str, dict[str, Any]]  # the kind of a layout, and its options


def batched(branches: list[str], **options: Any) -> Row:
    return "batched", {"branches": branches, **options}


def sequential(**options: Any) -> Row:
    return "sequential", {"branches": COND_FIRST, **options}


# What the source does not show, or shows in another way. Each group: its layout, and the pipelines.
BY_HAND: list[tuple[Row, str]] = [
    # The halves have no names, or are lists of samples.
    (
        batched(COND_FIRST),
        """
        DiTPipeline LuminaPipeline OmniGenPipeline ZImageControlNetInpaintPipeline ZImageControlNetPipeline
        ZImageImg2ImgPipeline ZImageInpaintPipeline ZImageOmniPipeline ZImagePipeline
        """,
    ),
    # Three branches for an edit, which then runs as plain CFG.
    (batched(UNCOND_FIRST), "DreamLitePipeline"),
    (
        batched(["cond", "image", "uncond"], predicted=["image", "uncond"]),
        "StableDiffusionInstructPix2PixPipeline StableDiffusionXLInstructPix2PixPipeline",
    ),
    # A guider makes the calls.
    (
        sequential(),
        """
        HunyuanImagePipeline HunyuanImageRefinerPipeline HunyuanVideo15ImageToVideoPipeline HunyuanVideo15Pipeline
        MotifVideoImage2VideoPipeline MotifVideoPipeline
        """,
    ),
    (sequential(unconditional="unconditional_transformer"), "Ideogram4Pipeline"),
    # Guidance that is not a combination of its two outputs: adaptive projected guidance with a momentum.
    (batched(COND_FIRST, explained=False), "AceStepPipeline"),
    # The scheduler's input is not a combination of the outputs of one step: it includes tokens of reference pictures or
    # given frames, the step is made in the space of the denoised sample, or there is no scheduler.
    (batched(UNCOND_FIRST, explained=False), "LTX2InContextPipeline"),
    (
        sequential(explained=False),
        """
        CosmosTextToWorldPipeline CosmosVideoToWorldPipeline LongCatAudioDiTPipeline
        SkyReelsV2DiffusionForcingImageToVideoPipeline SkyReelsV2DiffusionForcingPipeline
        SkyReelsV2DiffusionForcingVideoToVideoPipeline
        """,
    ),
    (sequential(explained=False, rescales=True), "Cosmos2VideoToWorldPipeline"),
    (sequential(rescales=True), "Cosmos2TextToImagePipeline"),
    # Its prior has a scheduler of its own, and costs little compared with the network after it: it runs in full.
    (batched(UNCOND_FIRST, denoisers=["unet"]), "StableUnCLIPPipeline"),
    # Kandinsky's prior costs little compared with its decoder; it can be enabled separately: pipe.prior_pipe.
    (
        ("delegates", {"parts": ["decoder_pipe"]}),
        """
        KandinskyCombinedPipeline KandinskyImg2ImgCombinedPipeline KandinskyInpaintCombinedPipeline
        KandinskyV22CombinedPipeline KandinskyV22Img2ImgCombinedPipeline KandinskyV22InpaintCombinedPipeline
        """,
    ),
    (
        ("delegates", {"parts": ["prior_pipe", "decoder_pipe"]}),
        "StableCascadeCombinedPipeline WuerstchenCombinedPipeline",
    ),
]

# Plans of the guidance term cannot be followed there; plans that skip the whole network can.
REFUSED: dict[str, str] = {
    "it is distilled: its network takes the guidance scale as an input and runs once a step": """
        DreamLiteMobilePipeline Flux2KleinKVPipeline Flux2Pipeline FluxControlImg2ImgPipeline FluxControlInpaintPipeline
        FluxControlNetImg2ImgPipeline FluxControlNetInpaintPipeline FluxControlPipeline FluxFillPipeline LTX2DFRPipeline
        LTX2DFRTemporalRefinePipeline LatentConsistencyModelImg2ImgPipeline LatentConsistencyModelPipeline
        SanaSprintImg2ImgPipeline SanaSprintPipeline VisualClozeGenerationPipeline VisualClozePipeline
        """,
    "it has no classifier-free guidance: its network runs once a step already": """
        AudioDiffusionPipeline ConsistencyModelPipeline DDIMPipeline DDPMPipeline DanceDiffusionPipeline
        DiffusionGemmaPipeline FluxPriorReduxPipeline Kandinsky6SRPipeline KarrasVePipeline LDMPipeline
        LDMSuperResolutionPipeline LLaDA2Pipeline LTX2LatentUpsamplePipeline LTX2VideoDiffusionDecodePipeline
        LTXLatentUpsamplePipeline MarigoldDepthPipeline MarigoldIntrinsicsPipeline MarigoldNormalsPipeline PNDMPipeline
        RFD4ProteinaPipeline RePaintPipeline ScoreSdeVePipeline SpectrogramDiffusionPipeline
        StableAudio3AudioToAudioPipeline StableAudio3InpaintPipeline
        """,
    "its unconditional output is used by more than the guidance formula (extra passes in each step)": """
        StableDiffusionGLIGENTextImagePipeline
        """,
    "its edit branches are guided one by one, with masks or momentum of their own": """
        CycleDiffusionPipeline LEditsPPPipelineStableDiffusion LEditsPPPipelineStableDiffusionXL
        SemanticStableDiffusionPipeline StableDiffusionPipelineSafe UniDiffuserPipeline
        """,
    "one call mixes views or timesteps, so that a step has no single guidance term": """
        StableDiffusionPanoramaPipeline StableDiffusionParadigmsPipeline TextToVideoZeroPipeline
        TextToVideoZeroSDXLPipeline
        """,
    "it samples tokens, not a diffusion ODE, and its guidance works on logits": """
        AmusedImg2ImgPipeline AmusedInpaintPipeline AmusedPipeline VQDiffusionPipeline
        """,
    "it runs several guided networks with schedulers of their own in one call": """
        UnCLIPImageVariationPipeline UnCLIPPipeline VersatileDiffusionDualGuidedPipeline
        VersatileDiffusionImageVariationPipeline VersatileDiffusionPipeline VersatileDiffusionTextToImagePipeline
        """,
    "it samples in chunks or stages that carry a cache of both branches from call to call": """
        AnyFlowFARPipeline HeliosPyramidPipeline LTXI2VLongMultiPromptPipeline
        """,
}


# No plan can be followed there.
REFUSED_ENTIRELY: dict[str, str] = {
    "it reads attention maps that its network stores in each call, so that no call can be left out": """
        StableDiffusionAttendAndExcitePipeline StableDiffusionPix2PixZeroPipeline StableDiffusionSAGPipeline
        """,
}


def main(check: Path | None) -> None:
    rows = layouts()
    if check is not None:
        compare(rows, json.loads(check.read_text()))
    members: dict[str, list[str]] = defaultdict(list)
    for name, row in rows.items():
        members[json.dumps(row)].append(name)
    groups = []
    for key, names in sorted(members.items()):
        kind, options = json.loads(key)
        groups.append({"kind": kind, "options": options, "pipelines": sorted(names, key=str.lower)})
    table = {"diffusers": diffusers.__version__, "groups": groups}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} pipelines")


def layouts() -> dict[str, Row]:
    """The layout of each pipeline class."""
    read = {name: row for name, source, call in sources() if (row := read_layout(source, call)) is not None}
    by_hand = {name: row for row, names in BY_HAND for name in names.split()}
    refused: dict[str, Row] = {
        name: ("refused", {"why": why}) for why, names in REFUSED.items() for name in names.split()
    }
    entirely: dict[str, Row] = {
        name: ("refused", {"why": why, "entirely": True})
        for why, names in REFUSED_ENTIRELY.items()
        for name in names.split()
    }
    return read | by_hand | refused | entirely


def sources() -> list[tuple[str, str, str]]:
    """Each pipeline class of diffusers, with its source and that of its call; not those with perturbed attention."""
    found = []
    for path in sorted(PIPELINES.rglob("pipeline_*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if not isinstance(node, ast.ClassDef) or "Pipeline" not in node.name or node.name.startswith("Onnx"):
                continue
            calls = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__call__"]
            if calls and not any("PAG" in ast.unparse(base) for base in node.bases):
                source, call = ("\n".join(lines[part.lineno - 1 : part.end_lineno]) for part in (node, calls[0]))
                found.append((node.name, source, call))
    return found


def read_layout(source: str, call: str) -> Row | None:
    """The layout that the source shows: named halves of an output, or a call for each branch."""
    for first, second in re.findall(HALVES, source):
        if WITHOUT.search(first):
            return batched(UNCOND_FIRST)
        if WITHOUT.search(second):
            return batched(COND_FIRST)
    several = len(re.findall(DENOISERS, call)) > 1
    return sequential() if several and WITHOUT.search(call) else None


def compare(rows: dict[str, Row], checked: list[dict[str, Any]]) -> None:
    """Raises an error if a run has shown another layout."""
    for result in checked:
        kind, options = rows.get(result["pipeline"], ("", {}))
        calls = {"batched": "one call", "sequential": "a call for each"}.get(kind)
        shown = result.get("checked", "")
        if shown and not shown.startswith(f"{calls}: {', '.join(options.get('branches', ()))}, w"):
            raise SystemExit(f"{result['pipeline']}: the table says {kind} {options}, a run has shown {shown!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
