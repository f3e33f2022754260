"""Diffusers without its chatter."""

import pytest
import torch

pytest.importorskip("diffusers", reason="the adapter needs diffusers")

import diffusers
import transformers

diffusers.utils.logging.set_verbosity_error()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)
