"""Scripts that make the shipped sound model from the General MIDI sound font FluidR3 (MIT licence).

The order is `sounds`, `autoencoder`, `judge`, `latents`, `vocoder`, `denoiser`, `export`, `evaluate`;
`python -m training.audio` runs them all. Each stage can be killed and started again.
"""
