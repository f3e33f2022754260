"""Tests on real engines: collected where an engine is installed, by `make test-serving`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore = [f"test_{engine}.py" for engine in ("sglang", "vllm_omni", "ray") if find_spec(engine) is None]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.serving_engines import shipped_model

    return shipped_model.save(tmp_path_factory.mktemp("model"))
