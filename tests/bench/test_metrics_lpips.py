"""LPIPS on random weights against the formula written out in numpy and scipy, and its weights file."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.signal import correlate

from thg.bench.metrics import Batch
from thg.bench.metrics.__main__ import main
from thg.bench.metrics.lpips import (
    ALEXNET_TAPS,
    VGG16_TAPS,
    PerceptualDistance,
    alexnet_layers,
    load_lpips,
    vgg16_layers,
)
from thg.errors import MissingExtraError


def tiny():
    torch.manual_seed(0)
    features = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3), torch.nn.ReLU()
    )
    return PerceptualDistance(features, (1, 3), [torch.rand(1, 4, 1, 1), torch.rand(1, 5, 1, 1)])


def convolve(x, layer, padding):
    weight, bias = layer.weight.detach().numpy().astype(float), layer.bias.detach().numpy().astype(float)
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    return np.stack([correlate(x, w, mode="valid")[0] + b for w, b in zip(weight, bias, strict=True)])


def by_hand(distance, first, second):
    shift, scale = np.array([-0.030, -0.088, -0.188]), np.array([0.458, 0.448, 0.450])

    def layers(picture):
        x = (2 * picture - 1 - shift[:, None, None]) / scale[:, None, None]
        one = np.maximum(convolve(x, distance.features[0], 1), 0)
        return one, np.maximum(convolve(one, distance.features[2], 0), 0)

    total = 0.0
    for number, (a, b) in enumerate(zip(layers(first), layers(second), strict=True)):
        a, b = a / (np.sqrt((a**2).sum(0)) + 1e-10), b / (np.sqrt((b**2).sum(0)) + 1e-10)
        head = distance.get_buffer(f"head{number}").numpy().reshape(-1, 1, 1)
        total += (head * (a - b) ** 2).sum(0).mean()
    return total


def test_the_distance_by_hand():
    distance = tiny()
    first, second = torch.rand(3, 3, 9, 11), torch.rand(3, 3, 9, 11)
    with torch.no_grad():
        found = distance(first, second)
    expected = [by_hand(distance, a, b) for a, b in zip(first.numpy(), second.numpy(), strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        assert distance(first, first).tolist() == [0, 0, 0]


def test_the_taps_are_the_relus_after_the_published_layers():
    with torch.device("meta"):
        networks = ((alexnet_layers(), ALEXNET_TAPS, 5), (vgg16_layers(), VGG16_TAPS, 13))
    for layers, taps, convolutions in networks:
        assert all(isinstance(layers[tap], torch.nn.ReLU) for tap in taps)
        assert sum(isinstance(layer, torch.nn.Conv2d) for layer in layers) == convolutions
        assert taps[-1] == len(layers) - 1


def write_alexnet(folder):
    """The two downloads, with random weights: a backbone with a classifier that is not wanted, and five heads."""
    layers = alexnet_layers()
    backbone = {f"features.{name}": value for name, value in layers.state_dict().items()}
    torch.save(backbone | {"classifier.1.weight": torch.zeros(2, 2)}, folder / "alexnet.pth")
    widths = (64, 192, 384, 256, 256)
    heads = {f"lin{number}.model.1.weight": torch.rand(1, width, 1, 1) for number, width in enumerate(widths)}
    torch.save(heads, folder / "alex.pth")
    return layers, list(heads.values())


def test_the_weights_file_is_packed_and_read(tmp_path, capsys):
    layers, heads = write_alexnet(tmp_path)
    target = tmp_path / "lpips.safetensors"
    assert main(["lpips", str(tmp_path / "alexnet.pth"), str(tmp_path / "alex.pth"), "--target", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    samples, references = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    metric = load_lpips(target)
    metric.update(Batch(samples, references=references))
    with torch.no_grad():
        expected = PerceptualDistance(layers, ALEXNET_TAPS, heads)(samples, references)
    assert metric.compute() == pytest.approx(float(expected.mean()), rel=1e-5)


def test_errors_say_what_is_missing(tmp_path):
    with pytest.raises(MissingExtraError, match="alexnet-owt"):
        load_lpips(tmp_path / "absent.safetensors")
    save_file({"features.0.weight": torch.zeros(2, 2)}, tmp_path / "headless.safetensors")
    with pytest.raises(MissingExtraError, match="0 heads"):
        load_lpips(tmp_path / "headless.safetensors")
    write_alexnet(tmp_path)
    main(
        [
            "lpips",
            str(tmp_path / "alexnet.pth"),
            str(tmp_path / "alex.pth"),
            "--target",
            str(tmp_path / "w.safetensors"),
        ]
    )
    other = load_file(tmp_path / "w.safetensors") | {"features.3.weight": torch.zeros(1)}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(MissingExtraError, match="another network"):
        load_lpips(tmp_path / "other.safetensors")


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"features.0.weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(MissingExtraError, match="refused"):
        load_lpips(tmp_path / "trap.pth")
    assert not (tmp_path / "sprung").exists()
