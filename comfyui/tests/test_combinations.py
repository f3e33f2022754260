"""Other nodes on the same model, in both orders, and the guiders of ComfyUI and of other packs."""

import comfy.samplers
import pytest
import torch
from pack.session import SETTLING
from sampling import PROMPTS, call, compared, custom, ksampler, psnr, report, strip, with_thg

STEPS = 30
ALIKE = 36  # dB

EPS = {
    "cfg.CFGZeroStar": (),
    "cfg.CFGNorm": (1.0,),
    "model_advanced.RescaleCFG": (0.7,),
    "mahiro.Mahiro": (),
    "apg.APG": (1.0, 5.0, 0.0),
    "tcfg.TCFG": (),
    "custom_sampler.CFGOverride": (3.0, 0.3, 0.6),
    "pag.PerturbedAttentionGuidance": (2.0,),
    "nag.NAGuidance": (5.0, 0.5, 1.5),
    "sag.SelfAttentionGuidance": (0.5, 2.0),
    "model_advanced.ModelSamplingDiscrete": ("v_prediction", False),
    "model_downscale.PatchModelAddDownscale": (1, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"),
}
FLOW = {"model_advanced.ModelSamplingSD3": (3.0,)}


@pytest.mark.parametrize(("name", "other"), [*(("eps", other) for other in EPS), *(("flow", other) for other in FLOW)])
def test_together(name, other, request):
    shipped = request.getfixturevalue(name)

    def patch(model):
        return call(other, model, *(EPS | FLOW)[other])

    plain = ksampler(shipped, patch(shipped.model), steps=STEPS)
    for model in (with_thg(patch(shipped.model)), patch(with_thg(shipped.model))):
        result = compared(shipped, model, plain, steps=STEPS)
        print(f"\n{name} {other} {result}")
        assert result.psnr > ALIKE
        assert result.share < 0.8  # CFGOverride changes the scale twice, and six calls are evaluated after each


def test_what_switches_within_a_run_is_evaluated(flow):
    patched = call("slg.SkipLayerGuidanceDiT", flow.model, 2.0, 0.1, 0.5, "2", "")
    plain, ours = (ksampler(flow, model, steps=STEPS) for model in (patched, with_thg(patched)))
    assert torch.equal(ours.latents, plain.latents)
    assert "Skip Layer Guidance switches on and off" in report(ours.latents)


def test_a_change_of_the_scale_starts_anew(eps):
    model = call("custom_sampler.CFGOverride", with_thg(eps.model, evaluations=0.2), 1.0, 0.5, 1.0)
    sigmas = comfy.samplers.calculate_sigmas(eps.model.get_model_object("model_sampling"), "normal", STEPS)
    change = int((sigmas[:-1] > eps.model.get_model_object("model_sampling").percent_to_sigma(0.5)).sum())
    marks = strip(ksampler(eps, model, steps=STEPS).latents)
    assert marks[change : change + 2] == "●●"
    assert marks.count("●") <= 0.2 * STEPS + 2


class NegativeFirst(comfy.samplers.CFGGuider):
    """A guider as other packs have them: its scale is not `cfg`, and it evaluates the negative prompt first."""

    scale = 5.0

    def predict_noise(self, x, timestep, model_options={}, seed=None):  # noqa: B006
        conds = [self.conds["negative"], self.conds["positive"]]
        negative, positive = comfy.samplers.calc_cond_batch(self.inner_model, conds, x, timestep, model_options)
        return negative + self.scale * (positive - negative)


def negative_first(model, positive, negative):
    guider = NegativeFirst(model)
    guider.set_conds(positive, negative)
    return guider


GUIDERS = {
    "PerpNeg": lambda m, p, q, n: call("perpneg.PerpNegGuider", m, p, n, q, 5.0, 1.0),
    "DualCFG": lambda m, p, q, n: call("custom_sampler.DualCFGGuider", m, p, q, n, 5.0, 3.0, "regular"),
    "DualCFG, nested": lambda m, p, q, n: call("custom_sampler.DualCFGGuider", m, p, q, n, 5.0, 3.0, "nested"),
    "Basic": lambda m, p, q, n: call("custom_sampler.BasicGuider", m, p),
    "DualModel": lambda m, p, q, n: call("custom_sampler.DualModelGuider", m, p, 5.0, m, n),
    "of another pack": lambda m, p, q, n: negative_first(m, p, n),
}


@pytest.mark.parametrize("name", GUIDERS)
def test_every_guider_leaps(eps, name):
    prompts = [eps.encode(text) for text in (*PROMPTS[:2], "")]
    plain, ours = (custom(eps, GUIDERS[name](model, *prompts), STEPS) for model in (eps.model, with_thg(eps.model)))
    found = psnr(eps.decode(ours), eps.decode(plain))
    print(f"\n{name} {found:.1f} dB, {report(ours).splitlines()[0]}")
    assert found > ALIKE
    assert strip(ours).count("●") < 0.75 * STEPS


class Switching(comfy.samplers.CFGGuider):
    """As Adaptive Guidance does: without guidance once both prompts agree. It remembers where that was."""

    switched = 0.0

    def predict_noise(self, x, timestep, model_options={}, seed=None):  # noqa: B006
        names = ("positive",) if self.switched else ("positive", "negative")
        conds = [self.conds[name] for name in names]
        outputs = comfy.samplers.calc_cond_batch(self.inner_model, conds, x, timestep, model_options)
        if self.switched:
            return outputs[0]
        if torch.cosine_similarity(*(part.flatten() for part in outputs), dim=0) > 0.99:
            self.switched = float(timestep[0])
        return outputs[1] + 5.0 * (outputs[0] - outputs[1])


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_a_guider_that_switches_by_what_it_sees(name, request):
    shipped = request.getfixturevalue(name)
    guiders = [Switching(model) for model in (shipped.model, with_thg(shipped.model))]
    for guider in guiders:
        guider.set_conds(shipped.encode(PROMPTS[0]), shipped.encode(""))
    plain, ours = (custom(shipped, guider, STEPS) for guider in guiders)
    schedule = shipped.model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(schedule, "normal", STEPS)[:-1]
    switch = int((sigmas >= guiders[1].switched - 1e-4).sum())
    assert 0 < switch < STEPS - SETTLING
    assert strip(ours)[switch : switch + SETTLING] == "●" * SETTLING
    assert "○" in strip(ours)
    assert psnr(shipped.decode(ours), shipped.decode(plain)) > ALIKE


def test_a_noise_schedule_among_the_options_is_no_change(eps):
    """RES4LYF leaves it there; its `sigma_data` is no noise level at which a patch ends."""
    model = with_thg(eps.model)
    expected = ksampler(eps, model, steps=STEPS).latents
    model.model_options["schedule"] = eps.model.get_model_object("model_sampling")
    assert torch.equal(ksampler(eps, model, steps=STEPS).latents, expected)


def test_a_patch_whose_list_holds_itself(eps):
    notes = []
    notes.append(notes)

    def patch(args):
        return args["denoised"] if notes else args["uncond_denoised"]

    model = eps.model.clone()
    model.set_model_sampler_post_cfg_function(patch)
    assert "○" in strip(ksampler(eps, with_thg(model), steps=STEPS).latents)


class Remembering(NegativeFirst):
    """Adds a part of what it returned before."""

    before = None

    def predict_noise(self, x, timestep, model_options={}, seed=None):  # noqa: B006
        now = super().predict_noise(x, timestep, model_options, seed)
        self.before = now if self.before is None else now + 0.1 * (now - self.before)
        return self.before


def test_a_guider_that_remembers_is_all_evaluated(eps):
    guiders = [Remembering(model) for model in (eps.model, with_thg(eps.model))]
    for guider in guiders:
        guider.set_conds(eps.encode(PROMPTS[0]), eps.encode(""))
    plain, ours = (custom(eps, guider, STEPS) for guider in guiders)
    assert torch.equal(ours, plain)
    assert "another node remembers what was evaluated before" in report(ours)
