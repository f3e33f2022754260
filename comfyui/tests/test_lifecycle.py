"""Nothing is left behind: after an interruption, after a failure, of one run in the next, of one model in another."""

import copy
import gc
import logging
import weakref

import comfy.model_management
import pytest
import torch
from pack.session import Session
from sampling import estimate, ksampler, report, strip, with_thg

STEPS = 12


def test_a_run_does_not_know_of_the_one_before(eps):
    model = with_thg(eps.model)
    first = ksampler(eps, model, steps=STEPS, seed=0)
    ksampler(eps, model, "heun", steps=5, seed=1, batch=2)
    again = ksampler(eps, model, steps=STEPS, seed=0)
    assert torch.equal(first.latents, again.latents)
    assert first.calls == again.calls


@pytest.mark.parametrize("error", [comfy.model_management.InterruptProcessingException, RuntimeError])
def test_an_interrupted_run_leaves_nothing_behind(eps, error):
    model = with_thg(eps.model)
    expected = ksampler(eps, model, steps=STEPS)
    options = copy.copy(model.model_options)

    def stop(args):
        if args["sigma"][0] < 2:
            raise error
        return args["denoised"]

    stopped = model.clone()
    stopped.set_model_sampler_post_cfg_function(stop)
    with pytest.raises(error):
        ksampler(eps, stopped, steps=STEPS)
    assert model.model_options == options
    assert not sessions()
    assert torch.equal(ksampler(eps, model, steps=STEPS).latents, expected.latents)


def sessions():
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, Session)]


def test_a_run_keeps_nothing_but_its_report(eps):
    result = ksampler(eps, with_thg(eps.model), steps=STEPS)
    assert not sessions()
    latents = weakref.ref(result.latents)
    del result
    gc.collect()
    assert latents() is None


def test_two_models_do_not_share_anything(eps, flow):
    models = {"eps": with_thg(eps.model), "flow": with_thg(flow.model, evaluations=0.7)}
    alone = {s.name: ksampler(s, models[s.name], steps=STEPS) for s in (eps, flow)}
    for shipped in (flow, eps, flow):
        again = ksampler(shipped, models[shipped.name], steps=STEPS)
        assert torch.equal(again.latents, alone[shipped.name].latents)
        assert report(again.latents) == report(alone[shipped.name].latents)


def test_a_second_node_replaces_the_first(eps):
    both = ksampler(eps, with_thg(with_thg(eps.model, evaluations=0.5), evaluations=0.7), steps=STEPS)
    assert torch.equal(both.latents, ksampler(eps, with_thg(eps.model, evaluations=0.7), steps=STEPS).latents)


def test_reports_belong_to_their_run(eps):
    model = with_thg(eps.model)
    first, second = ksampler(eps, model, steps=STEPS), ksampler(eps, model, steps=STEPS + 4)
    assert len(strip(first.latents)) == STEPS
    assert len(strip(second.latents)) == STEPS + 4
    assert len(strip(second.latents.half())) == STEPS + 4, "in half precision"
    assert "No run" in report(torch.randn(1, 4, 8, 8))


@pytest.mark.parametrize("steps", [STEPS + 4, 60])
def test_a_run_without_the_node_has_no_report(eps, steps):
    """Its latents are almost equal to those of the run with the node before it."""
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., 5, 5] = 1
    for masked in ({}, {"noise_mask": mask}):
        latent = {"samples": torch.ones(1, 4, 8, 8), **masked}
        ours, plain = (ksampler(eps, model, steps=steps, latent=latent) for model in (with_thg(eps.model), eps.model))
        assert "○" in strip(ours.latents)
        assert "No run" in report(plain.latents)


def test_the_error_is_estimated(eps):
    """Where there is an error to speak of; a run that is plain, or has not come to its end, has none."""
    assert 0 < estimate(ksampler(eps, with_thg(eps.model), steps=20).latents) < 0.02
    assert "(" not in report(ksampler(eps, with_thg(eps.model, preset="off"), steps=STEPS).latents)


def test_the_log_has_the_line_of_the_report(eps, caplog):
    with caplog.at_level(logging.INFO, logger="pack"):
        result = ksampler(eps, with_thg(eps.model, verbose=True), steps=STEPS)
    assert report(result.latents) in caplog.text
    assert "denoiser calls at" in caplog.text


def test_the_global_random_numbers_are_untouched(eps):
    """The sampler is run on numbers before the run, and that must not change what it draws."""
    state = torch.get_rng_state()
    plain = ksampler(eps, eps.model, "dpmpp_sde", steps=4)
    torch.set_rng_state(state)
    assert torch.equal(ksampler(eps, with_thg(eps.model), "dpmpp_sde", steps=4).latents, plain.latents)
