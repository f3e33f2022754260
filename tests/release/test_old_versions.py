"""What the lowest supported versions of other packages need. `make test-minimum` runs with them."""

import pytest
from safetensors import safe_open

from thg.models import shipped_path


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_text_encoders_have_the_names_that_every_transformers_reads(name):
    """Without the prefix, versions before it was dropped fill the text encoder with random numbers, and go on."""
    files = sorted(shipped_path(name).glob("text_encoder*/model.safetensors"))
    assert files
    for file in files:
        with safe_open(file, "pt") as tensors:
            assert all(key.startswith(("text_model.", "text_projection.")) for key in tensors.keys())  # noqa: SIM118
