"""Scripts that make the emoji model from Debian's Noto font, one stage to a module.

`python -m training.emoji` runs them in order: `autoencoder`, `judge`, `denoiser`, `export`, `evaluate`. Each can be run
alone as `python -m training.emoji.<stage>`, reads what the stages before it left in the `--work` folder, and can be
killed and started again. The denoiser needs only the encoder, which `autoencoder --encoder-only` computes in a minute.
"""
