"""Random weights where the packages of the metrics look for theirs: `python random_weights.py HOME`, in their Python.

HOME becomes the home of the user, of torch.hub (HOME/torch) and of the hub's client (HOME/hf). Two packages look in
places that cannot be chosen, clean-fid in /tmp and laion-clap beside its code; what is written there is printed, a path
a line, for the caller to remove.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

HIDDEN = 768  # of the texts, which the packages do not ask
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
INCEPTION = Path("/tmp/inception-2015-12-05.pt")


def cached(home: Path, name: str) -> Path:
    """The folder of a model in the cache of the hub's client, as a download leaves it."""
    folder = home / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("here")
    snapshot = folder / "snapshots" / "here"
    snapshot.mkdir(parents=True)
    return snapshot


def tokenizers(home: Path) -> None:
    """Those that laion-clap and ImageReward load by name, of single letters; and a text encoder of one layer."""
    from transformers import BertConfig, RobertaConfig, RobertaModel

    bert = cached(home, "bert-base-uncased")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (bert / "vocab.txt").write_text("\n".join([*special, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
    BertConfig(vocab_size=64, **TEXT).save_pretrained(bert)
    words = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "Ġ", "<mask>"]
    for name in ("roberta-base", "facebook/bart-base"):
        folder = cached(home, name)
        (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        RobertaModel(RobertaConfig(vocab_size=64, max_position_embeddings=80, **TEXT)).save_pretrained(folder)


def lpips(home: Path) -> None:
    from torchvision.models import alexnet

    file = home / "torch" / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(alexnet().state_dict(), file)


class Inception(nn.Module):
    """What clean-fid needs of its network: layers from 299 x 299 pixels to 2048 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 2048, 7, stride=73), nn.ReLU(), nn.AdaptiveAvgPool2d(1))


def clean_fid() -> Path:
    torch.jit.script(Inception()).save(str(INCEPTION))
    return INCEPTION


def image_reward(home: Path) -> None:
    """Of its last layers, which answer with 0 at their initial weights; the others keep theirs."""
    folder = home / ".cache" / "ImageReward"
    folder.mkdir(parents=True)
    widths = {0: (768, 1024), 2: (1024, 128), 4: (128, 64), 6: (64, 16), 7: (16, 1)}  # by the number of the layer
    last = {f"mlp.layers.{k}.weight": torch.randn(out, into) / into**0.5 for k, (into, out) in widths.items()}
    torch.save(last, folder / "ImageReward.pt")
    text = {**TEXT, "vocab_size": 80, "max_position_embeddings": 64, "add_cross_attention": True}
    (folder / "med_config.json").write_text(json.dumps(text))


def clap() -> Path:
    import laion_clap

    network = laion_clap.CLAP_Module(enable_fusion=False).model
    file = Path(laion_clap.__file__).parent / "630k-audioset-best.pt"
    positions = {"text_branch.embeddings.position_ids": torch.arange(80)[None]}  # as old versions have saved them
    torch.save(network.state_dict() | positions, file)
    return file


def vggish(home: Path) -> None:
    """The network of FAD, if its code is where torch.hub puts it; no index of packages has it."""
    hub = home / "torch" / "hub"
    if not (hub / "harritaylor_torchvggish_master").is_dir():
        return
    network = torch.hub.load("harritaylor/torchvggish", "vggish", pretrained=False, postprocess=False)
    eigen = {"pca_eigen_vectors": torch.eye(128).numpy(), "pca_means": torch.zeros(128).numpy()}
    for name, weights in (("vggish-10086976.pth", network.state_dict()), ("vggish_pca_params-970ea276.pth", eigen)):
        torch.save(weights, hub / "checkpoints" / name)


if __name__ == "__main__":
    torch.manual_seed(0)
    home = Path(sys.argv[1])
    printed, sys.stdout = sys.stdout, sys.stderr
    tokenizers(home)
    lpips(home)
    image_reward(home)
    written = [clean_fid(), clap()]
    vggish(home)
    print(*written, sep="\n", file=printed)
