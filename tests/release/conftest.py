"""Diffusers without its chatter."""

import pytest
import torch

pytest.importorskip("diffusers", reason="faults are tried on real pipelines")

import diffusers
import transformers

diffusers.utils.logging.set_verbosity_error()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)
