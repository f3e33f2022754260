"""Other nodes on the same model, in both orders."""

import pytest
from comfy_extras import (
    nodes_apg,
    nodes_cfg,
    nodes_custom_sampler,
    nodes_easycache,
    nodes_mahiro,
    nodes_model_advanced,
    nodes_model_downscale,
    nodes_pag,
    nodes_slg,
    nodes_tcfg,
)
from sampling import compared, ksampler, report, strip, with_thg

STEPS = 30
ALIKE = 30  # dB

EPS = {
    "CFGZeroStar": lambda m: nodes_cfg.CFGZeroStar.execute(m)[0],
    "CFGNorm": lambda m: nodes_cfg.CFGNorm.execute(m, 1.0)[0],
    "RescaleCFG": lambda m: nodes_model_advanced.RescaleCFG().patch(m, 0.7)[0],
    "Mahiro": lambda m: nodes_mahiro.Mahiro.execute(m)[0],
    "APG": lambda m: nodes_apg.APG.execute(m, 1.0, 5.0, 0.0)[0],
    "TCFG": lambda m: nodes_tcfg.TCFG.execute(m)[0],
    "CFG Override": lambda m: nodes_custom_sampler.CFGOverride.execute(m, 3.0, 0.3, 0.6)[0],
    "LazyCache": lambda m: nodes_easycache.LazyCacheNode.execute(m, 0.1, 0.15, 0.95, False)[0],
    "PAG": lambda m: nodes_pag.PerturbedAttentionGuidance.execute(m, 2.0)[0],
    "v-prediction": lambda m: nodes_model_advanced.ModelSamplingDiscrete().patch(m, "v_prediction", False)[0],
}
EPS["Deep Shrink"] = lambda m: nodes_model_downscale.PatchModelAddDownscale.execute(
    m, 1, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"
)[0]
FLOW = {
    "SkipLayerGuidance": lambda m: nodes_slg.SkipLayerGuidanceDiT.execute(m, 2.0, 0.1, 0.5, "2", "")[0],
    "ModelSamplingSD3": lambda m: nodes_model_advanced.ModelSamplingSD3().patch(m, 3.0)[0],
}


@pytest.mark.parametrize(("name", "other"), [*(("eps", other) for other in EPS), *(("flow", other) for other in FLOW)])
def test_together(name, other, request):
    shipped = request.getfixturevalue(name)
    patch = (EPS | FLOW)[other]
    plain = ksampler(shipped, patch(shipped.model), steps=STEPS)
    for model in (with_thg(patch(shipped.model)), patch(with_thg(shipped.model))):
        result = compared(shipped, model, plain, steps=STEPS)
        print(f"{name} {other} {result.psnr:.1f} dB {result.share:.2f}")
        assert result.psnr > ALIKE
        assert result.share < (1.0 if other == "LazyCache" else 0.85)  # after each step that it skips, all is evaluated


def test_cfg_zero_star_goes_without_the_corrector(eps):
    model = with_thg(EPS["CFGZeroStar"](eps.model))
    assert "no corrector: CFG-Zero*" in report(ksampler(eps, model, steps=STEPS).latents)


def test_a_change_of_the_scale_is_evaluated_anew(eps):
    model = nodes_custom_sampler.CFGOverride.execute(with_thg(eps.model, evaluations=0.5), 3.0, 0.5, 1.0)[0]
    marks = strip(ksampler(eps, model, steps=STEPS).latents)
    assert marks.count("●") == 2
    assert 10 < marks.rindex("●") < 20


def test_an_end_of_guidance_by_another_node(eps):
    """Guidance at scale 1 has no negative branch, which ComfyUI knows itself."""
    model = nodes_custom_sampler.CFGOverride.execute(eps.model, 1.0, 0.5, 1.0)[0]
    result = compared(eps, with_thg(model), ksampler(eps, model, steps=STEPS), steps=STEPS)
    assert result.psnr > ALIKE
    assert strip(result.ours.latents).endswith(" " * 10)
