"""Which network a pipeline has: the same however it was loaded, compiled or adapted; another network has another."""

from __future__ import annotations

import copy
from collections.abc import Callable

import diffusers
import pytest
import torch

import thg
from tests.pipelines.families.case import WIDTH, unet
from tests.pipelines.families.stable_diffusion import sd15
from thg.pipelines.identity import fingerprint, identity
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


# -- the weights, for results of `thg.tune`


def loaded(network: torch.nn.Module) -> None:
    network.load_state_dict({name: 1.1 * value for name, value in network.state_dict().items()})


def assigned(network: torch.nn.Module) -> None:
    network.load_state_dict({name: 1.1 * value for name, value in network.state_dict().items()}, assign=True)


def changed_in_place(network: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.1)


def changed_behind_it(network: torch.nn.Module) -> None:
    for parameter in network.parameters():
        parameter.data *= 1.1


def trained_in_part(network: torch.nn.Module) -> None:
    with torch.no_grad():
        network.get_parameter("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight").mul_(1.1)


@pytest.mark.parametrize("change", [loaded, assigned, changed_in_place, changed_behind_it, trained_in_part])
def test_other_weights_in_the_same_network_are_noticed(change: Callable[[torch.nn.Module], None]):
    pipe = sd15().pipe
    before, weights = identity(pipe), copy.deepcopy(pipe.unet.state_dict())
    assert identity(pipe) == before
    change(pipe.unet)
    assert identity(pipe)["network"] != before["network"]
    assert fingerprint(pipe) in identity(pipe)["network"]
    pipe.unet.load_state_dict(weights)
    assert identity(pipe) == before


def test_a_precision_is_noticed():
    pipe = sd15().pipe
    before = identity(pipe)
    pipe.unet.to(torch.bfloat16)
    assert identity(pipe)["precision"] == "bfloat16" != before["precision"]


def test_an_adapter_is_noticed_while_it_acts():
    peft = pytest.importorskip("peft")
    pipe = sd15().pipe
    network, before = pipe.unet, identity(pipe)
    network.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False))
    states = {"at first": before["network"], "beside the weights": identity(pipe)["network"]}
    network.set_adapters(["default"], [0.5])
    states["weaker"] = identity(pipe)["network"]
    network.fuse_lora()
    states["fused"] = identity(pipe)["network"]
    assert len(set(states.values())) == len(states), states
    network.unfuse_lora()
    assert identity(pipe)["network"] == states["weaker"]
    network.disable_lora()
    assert identity(pipe) == before
    network.enable_lora()
    network.delete_adapters("default")
    assert identity(pipe) == before
