"""Training goes on from the shipped weights: a part of the shipped pipeline as the start of a stage."""

from torch import nn

from thg.models import load_folder
from training.export import MODELS

SHIPPED = MODELS / "audio"


def start_from(network: nn.Module, part: str) -> bool:
    """Copies the weights of the shipped part, if there is one and its sizes are the same. Returns whether it did."""
    if not (SHIPPED / "model_index.json").exists():
        return False
    shipped = getattr(load_folder(SHIPPED), part).state_dict()
    own = network.state_dict()
    if {name: value.shape for name, value in shipped.items()} != {name: value.shape for name, value in own.items()}:
        print(f"{part}: the shipped one has other sizes; training starts from the beginning", flush=True)
        return False
    network.load_state_dict(shipped)
    print(f"{part}: starts from the shipped weights", flush=True)
    return True
