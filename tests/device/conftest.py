"""Diffusers without its chatter, and a device where torch has one to offer."""

import pytest

pytest.importorskip("diffusers", reason="the adapter needs diffusers")
pytest.importorskip("torch.utils.backend_registration", reason="a device in Python needs torch 2.9")

import diffusers

diffusers.utils.logging.set_verbosity_error()
