"""Scripts that make the shipped models from Fashion-MNIST, one stage to a module.

The order is `autoencoder`, `judge`, `latents`, `eps`, `flow`, `export`, `evaluate`; each is run as
`python -m training.<stage>`, reads what the stages before it left in the `--work` folder, and can be killed and started
again.
"""
