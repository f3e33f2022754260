"""Diffusers without its chatter."""

import pytest
import torch

pytest.importorskip("diffusers", reason="thg.pipelines needs diffusers")

import diffusers
import transformers

diffusers.utils.logging.set_verbosity_error()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)
