"""Nodes of other packs, as they are. They are not on PyPI: COMFYUI_PACKS names a folder with those that are there,
under their names on GitHub, and the tests of the others are skipped."""

import importlib.util
import os
import sys
from pathlib import Path

import comfy.model_management
import pytest
import torch
from sampling import ksampler, psnr, report, strip, with_thg

PACKS = Path(os.environ.get("COMFYUI_PACKS", "no packs"))
STEPS = 30
ALIKE = 36  # dB
PERTURBED, THRESHOLDS, SKIMMED = "sd-perturbed-attention", "sd-dynamic-thresholding", "Skimmed_CFG"
REMEMBERS, RANDOM = "another node remembers", "another node draws random numbers"


def module(pack, name):
    """A module of a pack, which is imported as ComfyUI does."""
    folder = PACKS / pack
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    package = "pack_" + pack.replace("-", "_")
    if package not in sys.modules:
        places = [str(folder)]
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=places
        )
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


def unloaded(model):
    """These packs patch what is loaded: a model with the patch of another run gets it twice."""
    comfy.model_management.unload_all_models()
    return model


def pairs(eps, patch, **given):
    """Plain latents and the node's, in both orders of the two nodes."""
    plain = ksampler(eps, patch(unloaded(eps.model)), steps=STEPS, **given)
    for order in (lambda model: with_thg(patch(model)), lambda model: patch(with_thg(model))):
        yield plain, ksampler(eps, order(unloaded(eps.model)), steps=STEPS, **given)


def perturbed_tokens(model):
    return module(PERTURBED, "tpg_nodes").TokenPerturbationGuidance().patch(model, unet_block_list="")[0]


def momentum(model):
    return module(PERTURBED, "mg_nodes").MomentumGuidance.execute(model=model, momentum=0.5, ema=0.5)[0]


def sliding_mode(model):
    return module(PERTURBED, "smc_nodes").SlidingModeControlCFG.execute(model=model, **{"lambda": 5.0, "k": 0.2})[0]


@pytest.mark.parametrize(
    ("patch", "reason"), [(perturbed_tokens, RANDOM), (momentum, REMEMBERS), (sliding_mode, REMEMBERS)]
)
def test_what_cannot_be_skipped(eps, patch, reason):
    for plain, ours in pairs(eps, patch):
        assert torch.equal(ours.latents, plain.latents)
        assert reason in report(ours.latents)


def perturbed_attention_in_a_part(model):
    return module(PERTURBED, "pag_nodes").PerturbedAttention().patch(model, sigma_start=8.0, sigma_end=1.0)[0]


def smoothed_energy(model):
    return module(PERTURBED, "pag_nodes").SmoothedEnergyGuidanceAdvanced().patch(model)[0]


def thresholds(model):
    return module(THRESHOLDS, "dynthres_comfyui").DynamicThresholdingSimpleComfyNode().patch(model, 5.0, 1.0)[0]


def skimmed(model):
    return module(SKIMMED, "skimmed_CFG").CFG_skimming_single_scale_pre_cfg_node().patch(model, 3.0)[0]


@pytest.mark.parametrize(
    ("patch", "cfg"), [(perturbed_attention_in_a_part, 5.0), (smoothed_energy, 5.0), (thresholds, 9.0), (skimmed, 9.0)]
)
def test_other_guidance(eps, patch, cfg):
    for plain, ours in pairs(eps, patch, cfg=cfg):
        assert psnr(ours.pictures, plain.pictures) > ALIKE
        assert "○" in strip(ours.latents)
