"""Settings that all tests share."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("thg", deadline=None, max_examples=60)
settings.load_profile("thg")
