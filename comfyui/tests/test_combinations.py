"""Other nodes on the same model, in both orders, and the guiders of ComfyUI and of other packs."""

import comfy.samplers
import pytest
import torch
from comfy_extras import (
    nodes_apg,
    nodes_cfg,
    nodes_custom_sampler,
    nodes_mahiro,
    nodes_model_advanced,
    nodes_model_downscale,
    nodes_nag,
    nodes_pag,
    nodes_perpneg,
    nodes_sag,
    nodes_slg,
    nodes_tcfg,
)
from sampling import PROMPTS, compared, custom, ksampler, psnr, report, strip, with_thg

STEPS = 30
ALIKE = 36  # dB

EPS = {
    "CFGZeroStar": lambda m: nodes_cfg.CFGZeroStar.execute(m)[0],
    "CFGNorm": lambda m: nodes_cfg.CFGNorm.execute(m, 1.0)[0],
    "RescaleCFG": lambda m: nodes_model_advanced.RescaleCFG().patch(m, 0.7)[0],
    "Mahiro": lambda m: nodes_mahiro.Mahiro.execute(m)[0],
    "APG": lambda m: nodes_apg.APG.execute(m, 1.0, 5.0, 0.0)[0],
    "TCFG": lambda m: nodes_tcfg.TCFG.execute(m)[0],
    "CFG Override": lambda m: nodes_custom_sampler.CFGOverride.execute(m, 3.0, 0.3, 0.6)[0],
    "PAG": lambda m: nodes_pag.PerturbedAttentionGuidance.execute(m, 2.0)[0],
    "NAG": lambda m: nodes_nag.NAGuidance.execute(m, 5.0, 0.5, 1.5)[0],
    "SAG": lambda m: nodes_sag.SelfAttentionGuidance.execute(m, 0.5, 2.0)[0],
    "v-prediction": lambda m: nodes_model_advanced.ModelSamplingDiscrete().patch(m, "v_prediction", False)[0],
}
EPS["Deep Shrink"] = lambda m: nodes_model_downscale.PatchModelAddDownscale.execute(
    m, 1, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"
)[0]
FLOW = {
    "ModelSamplingSD3": lambda m: nodes_model_advanced.ModelSamplingSD3().patch(m, 3.0)[0],
}


@pytest.mark.parametrize(("name", "other"), [*(("eps", other) for other in EPS), *(("flow", other) for other in FLOW)])
def test_together(name, other, request):
    shipped = request.getfixturevalue(name)
    patch = (EPS | FLOW)[other]
    plain = ksampler(shipped, patch(shipped.model), steps=STEPS)
    for model in (with_thg(patch(shipped.model)), patch(with_thg(shipped.model))):
        result = compared(shipped, model, plain, steps=STEPS)
        print(f"\n{name} {other} {result}")
        assert result.psnr > ALIKE
        assert result.share < 0.75


def test_what_switches_within_a_run_is_evaluated(flow):
    patched = nodes_slg.SkipLayerGuidanceDiT.execute(flow.model, 2.0, 0.1, 0.5, "2", "")[0]
    plain, ours = (ksampler(flow, model, steps=STEPS) for model in (patched, with_thg(patched)))
    assert torch.equal(ours.latents, plain.latents)
    assert "Skip Layer Guidance switches on and off" in report(ours.latents)


def test_a_change_of_the_scale_starts_anew(eps):
    model = nodes_custom_sampler.CFGOverride.execute(with_thg(eps.model, evaluations=0.2), 1.0, 0.5, 1.0)[0]
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


def guiders(shipped, model):
    positive, middle, negative = (shipped.encode(text) for text in (*PROMPTS[:2], ""))
    yield nodes_perpneg.PerpNegGuider.execute(model, positive, negative, middle, 5.0, 1.0)[0]
    for style in ("regular", "nested"):
        yield nodes_custom_sampler.DualCFGGuider.execute(model, positive, middle, negative, 5.0, 3.0, style)[0]
    yield nodes_custom_sampler.BasicGuider.execute(model, positive)[0]
    yield nodes_custom_sampler.DualModelGuider.execute(model, positive, 5.0, model, negative)[0]
    other = NegativeFirst(model)
    other.set_conds(positive, negative)
    yield other


def test_every_guider_leaps(eps):
    for plain, ours in zip(guiders(eps, eps.model), guiders(eps, with_thg(eps.model)), strict=True):
        expected, latents = custom(eps, plain, STEPS), custom(eps, ours, STEPS)
        found = psnr(eps.decode(latents), eps.decode(expected))
        print(f"\n{type(plain).__name__} {found:.1f} dB, {report(latents).splitlines()[0]}")
        assert found > ALIKE, type(plain).__name__
        assert strip(latents).count("●") < 0.75 * STEPS
