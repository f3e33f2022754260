"""Which network a pipeline has: the same however it was loaded, compiled or adapted; another network has another."""

from __future__ import annotations

import diffusers
import pytest
import torch

import thg
from tests.pipelines.families.case import WIDTH, unet
from tests.pipelines.families.stable_diffusion import sd15
from thg.pipelines.identity import fingerprint
from thg.profiles.planner import same_network


def test_settings_of_a_newer_diffusers_do_not_matter():
    case, newer = sd15(), sd15()
    newer.pipe.unet.register_to_config(an_argument_of_tomorrow=1)
    assert fingerprint(case.pipe) == fingerprint(newer.pipe)


def test_another_size_is_another_network():
    case, wider = sd15(), sd15()
    wider.pipe.unet = unet(block_out_channels=(WIDTH, 2 * WIDTH))
    assert fingerprint(case.pipe) != fingerprint(wider.pipe)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("first", ["compile", "enable"])
def test_compiled_networks_are_seen_through(wrapped, first):
    case = sd15()
    before = fingerprint(case.pipe)
    if first == "enable":
        thg.enable(case.pipe)
    if wrapped:
        case.pipe.unet = torch.compile(case.pipe.unet, backend="eager")
    else:
        case.pipe.unet.compile(backend="eager")
    thg.enable(case.pipe)
    assert fingerprint(case.pipe) == before


def test_adapters_do_not_matter():
    peft = pytest.importorskip("peft")
    case, adapted = sd15(), sd15()
    adapted.pipe.unet.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False))
    assert fingerprint(case.pipe) == fingerprint(adapted.pipe)


def test_profiles_of_the_first_version_are_known_by_the_class():
    name = fingerprint(sd15().pipe)
    assert same_network(name, name)
    assert same_network("UNet2DConditionModel-550838ce", name)
    assert not same_network("SD3Transformer2DModel-550838ce", name)
    assert not same_network("UNet2DConditionModel:00000000", name)


def test_without_a_network():
    assert fingerprint(diffusers.DDIMScheduler()) == ""
