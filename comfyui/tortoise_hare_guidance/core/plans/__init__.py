# A copy of src/thg/plans, made by comfyui/make_core.py: change it there.
