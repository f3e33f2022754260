# A copy of src/thg/, made by comfyui/make_core.py: change it there.
