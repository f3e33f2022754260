"""Diffusers without its chatter; one tiny calibration that several tests look at."""

import logging
import warnings

import pytest
import torch

pytest.importorskip("diffusers", reason="calibration needs diffusers")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the import, which happens once for all tests
    import diffusers
    import transformers

    from tests.calibrate.pipelines import PROMPTS, stable_diffusion
    from thg import calibrate

diffusers.utils.logging.set_verbosity(logging.ERROR)
transformers.utils.logging.set_verbosity(logging.ERROR)
torch.set_num_threads(1)

STEPS, SCALE = 10, 4.0


@pytest.fixture(scope="session")
def profile():
    return calibrate(
        stable_diffusion(),
        PROMPTS[:3],
        steps=STEPS,
        guidance_scale=SCALE,
        batch_size=3,
        algorithm3=True,
        progress=False,
    )
