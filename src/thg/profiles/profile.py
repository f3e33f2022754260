"""A profile: the measurements of a calibration, and the planners that use them.

It is a value made of sums over samples, so that the profiles of several processes merge exactly: count, sum and sum of
squares of each quantity, and the sum of the Gram matrices. Stored as JSON; a large one keeps its arrays in a
safetensors file next to it. It is independent of pipelines and networks.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from thg.errors import ProfileError
from thg.files import write_atomically
from thg.ode.outputs import Prediction
from thg.plans.fidelity import DEFAULT_ERROR
from thg.plans.plan import Plan
from thg.plans.run import RunInfo
from thg.profiles.moments import Moments
from thg.profiles.planner import Method, ProfilePlanner

FORMAT = "thg-profile-1"
LARGE = 20_000  # numbers; above it the arrays are stored in a separate file

Array = NDArray[np.float64]


@dataclass(frozen=True)
class About:
    """The settings of a profile's measurement.

    network: class and fingerprint of the network's architecture. order: p of the solver, at most 2.
    """

    pipeline: str
    network: str
    model: str
    scheduler: str
    prediction: Prediction
    order: int
    steps: int
    guidance_scale: float
    seed: int
    date: str
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Profile:
    """The measurements of a calibration, per step of its run.

    about: model, scheduler, steps N, guidance scale, date, versions.
    times: the N time steps. noise: sigma / (alpha + sigma) at each of them and at the end (N+1 numbers; it is the time
        of a flow model, and a bounded function of the log-SNR for any other). middle: the same at the N-1 midpoints.
    tortoise, hare: norms of the errors of e_c and d at the midpoint of each step but the last (N-1 numbers). With the
        solver's factor, and w-1 for the hare, they are the paper's error constants. The last step needs none.
    tortoise_rate, hare_rate: norms of the time derivatives of e_c and d (N-1 numbers).
    gram: sum over samples of the inner products of the guidance terms d_i (N x N).
    anchors, sensitivity: how much of an error made at these steps remains at the end of the run; may be missing.
    state: norm of the state at the last step; profiles of thg 0.1 do not have it.
    """

    about: About
    times: Array
    noise: Array
    middle: Array
    tortoise: Moments
    hare: Moments
    tortoise_rate: Moments
    hare_rate: Moments
    gram: Array
    anchors: tuple[int, ...] = ()
    sensitivity: Moments | None = None
    state: Moments | None = None

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def steps(self) -> int:
        return self.about.steps

    @property
    def samples(self) -> int:
        return self.tortoise.count

    def __repr__(self) -> str:
        a = self.about
        return (
            f"Profile({a.model or a.pipeline}, {a.scheduler}, steps={a.steps}, guidance_scale={a.guidance_scale:g}, "
            f"samples={self.samples}, date={a.date})"
        )

    # -- plans

    def plan(self, run: RunInfo) -> Plan:
        """The plan of `planner(error=0.01)`: a profile is a planner itself, `thg.enable(pipe, profile)`."""
        return self.planner(error=DEFAULT_ERROR).plan(run)

    def planner(
        self,
        *,
        error: float | None = None,
        nfe: float | None = None,
        rho: float | None = None,
        method: Method | None = None,
        hare_order: int | None = None,
        corrector: float | None = None,
        cutoff: int | None = None,
        boost: float = 1.0,
    ) -> ProfilePlanner:
        """A planner for any number of steps and any guidance scale near the measured ones.

        Common arguments:
            error: how far the final latents may be from plain CFG's, relative to their own norm. It takes the fewest
                evaluations with which 95 % of the runs are predicted to stay within it.
            nfe: instead of it, a budget of evaluations; a float is a share of plain CFG's, an int a count.
            rho: or the allowed ratio of hare error to tortoise error: the paper's planner.

        Advanced arguments:
            method: how to meet a budget. "optimal" minimises the predicted error at the end of the run, "algorithm2"
                takes the smallest rho that fits.
            hare_order, corrector, cutoff, boost: see `Plan`. Unless set, rho means the paper's plan (order 1, no
                corrector), all else thg's (order 2, with the corrector). The cutoff is a step of the profile's own
                run, and moves with the noise level in a run of other length.
        """
        return ProfilePlanner.checked(self, error, nfe, rho, method, hare_order, corrector, cutoff, boost)

    @property
    def state_norm(self) -> float:
        """The root mean square over samples of the norm of the state at the last step."""
        if self.state is None:
            raise ProfileError(
                "this profile was made by thg 0.1 and does not know the norm of the latents, which a plan by error "
                "needs: calibrate again, or give a budget, profile.planner(nfe=0.65) (thg plan FILE --nfe 0.65)"
            )
        return math.sqrt(self.state.squares[0] / self.state.count)

    # -- merging

    def merged(self, other: Profile) -> Profile:
        """This profile and another of the same model and settings as one, as if measured together."""
        mine, theirs = asdict(self.about), asdict(other.about)
        for name in mine:
            if name not in ("seed", "date", "versions") and mine[name] != theirs[name]:
                raise ProfileError(f"profiles of different {name} do not merge: {mine[name]!r} and {theirs[name]!r}")
        if not np.array_equal(self.noise, other.noise) or self.anchors != other.anchors:
            raise ProfileError("profiles on different time grids, or with different anchors, do not merge")
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("tortoise", "hare", "tortoise_rate", "hare_rate", "gram")
        }
        for name in ("sensitivity", "state"):
            both = getattr(self, name), getattr(other, name)
            sums[name] = None if None in both else both[0] + both[1]
        return replace(self, **sums, anchors=self.anchors if sums["sensitivity"] else ())

    # -- files

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the profile atomically; replaces an existing file only with `force`."""
        path = Path(path)
        if path.exists() and not force:
            raise ProfileError(f"{path} exists already; write force=True (--force) to replace it")
        arrays = _arrays_of(self)
        document: dict[str, Any] = {"format": FORMAT, "about": asdict(self.about), "samples": self.samples}
        if self.sensitivity is not None:
            document |= {"anchors": list(self.anchors), "sensitivity_samples": self.sensitivity.count}
        if sum(a.size for a in arrays.values()) > LARGE:
            from safetensors.numpy import save

            arrays_path = path.with_suffix(".safetensors")
            if arrays_path.exists() and not force:
                raise ProfileError(f"{arrays_path} exists already; write force=True (--force) to replace it")
            write_atomically(arrays_path, save({name: np.ascontiguousarray(a) for name, a in arrays.items()}))
            document["arrays"] = arrays_path.name
        else:
            document["arrays"] = {name: a.tolist() for name, a in arrays.items()}
        write_atomically(path, (json.dumps(document) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Reads and checks a profile."""
        path = Path(path)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ProfileError(f"there is no profile {path}; make one: thg calibrate --out {path}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ProfileError(f"{path} is not a profile, or a truncated one: {error}") from None
        try:
            return _from_document(document, path)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProfileError(f"{path} is damaged or was edited by hand ({type(error).__name__}: {error})") from None


_MOMENTS = ("tortoise", "hare", "tortoise_rate", "hare_rate")


def _arrays_of(profile: Profile) -> dict[str, Array]:
    arrays = {"times": profile.times, "noise": profile.noise, "middle": profile.middle, "gram": profile.gram}
    moments = {name: getattr(profile, name) for name in _MOMENTS}
    moments |= {name: value for name in ("sensitivity", "state") if (value := getattr(profile, name)) is not None}
    for name, value in moments.items():
        arrays |= {f"{name}.total": value.total, f"{name}.squares": value.squares}
    return arrays


def _from_document(document: Any, path: Path) -> Profile:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ProfileError(f"the format must be {FORMAT!r}, not {found!r}; calibrate again with this version of thg")
    stored = document["arrays"]
    if isinstance(stored, str):
        stored = _read_beside(path.parent / Path(stored).name)
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in stored.items()}

    def moments(name: str, count: int) -> Moments:
        return Moments(count, arrays[f"{name}.total"], arrays[f"{name}.squares"])

    about = document["about"]
    if unknown := sorted(set(about) - {f.name for f in fields(About)}):
        raise ProfileError(f"unknown field {unknown[0]!r}")
    samples = document["samples"]
    anchors = tuple(int(k) for k in document.get("anchors", ()))
    return Profile(
        About(**about),
        arrays["times"],
        arrays["noise"],
        arrays["middle"],
        moments("tortoise", samples),
        moments("hare", samples),
        moments("tortoise_rate", samples),
        moments("hare_rate", samples),
        gram=arrays["gram"],
        anchors=anchors,
        sensitivity=moments("sensitivity", document["sensitivity_samples"]) if anchors else None,
        state=moments("state", samples) if "state.total" in arrays else None,
    )


def _read_beside(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(path.read_bytes()))
    except (OSError, SafetensorError) as error:
        raise ProfileError(f"the arrays in {path.name} cannot be read: {error}") from None


# -- checks


def _validate(profile: Profile) -> None:
    about = profile.about
    n = about.steps
    if not isinstance(n, int) or n < 2:
        raise ProfileError(f"a profile needs at least 2 steps, not {n!r}")
    if about.prediction not in get_args(Prediction) or about.order not in (1, 2):
        raise ProfileError(f"prediction {about.prediction!r} or order {about.order!r} is not known")
    if not math.isfinite(about.guidance_scale) or about.guidance_scale <= 1:
        raise ProfileError(f"guidance_scale must be above 1, not {about.guidance_scale!r}: there is no guidance")
    shapes = {"times": (n,), "noise": (n + 1,), "middle": (n - 1,), "gram": (n, n)}
    shapes |= {f"{name}.{part}": (n - 1,) for name in _MOMENTS for part in ("total", "squares")}
    shapes |= {f"sensitivity.{part}": (len(profile.anchors),) for part in ("total", "squares")}
    shapes |= {f"state.{part}": (1,) for part in ("total", "squares")}
    for name, array in _arrays_of(profile).items():
        if array.shape != shapes[name]:
            raise ProfileError(f"{name} must have the shape {shapes[name]}, not {array.shape}")
        if not np.isfinite(array).all():
            raise ProfileError(f"{name} holds NaN or infinity")
        if name not in ("times", "gram") and (array < 0).any():
            raise ProfileError(f"{name} holds negative numbers")
    if np.any(np.diff(profile.noise) > 0):
        raise ProfileError("the noise must fall along the run")
    counts = [getattr(profile, name).count for name in _MOMENTS]
    counts += [moments.count for moments in (profile.sensitivity, profile.state) if moments is not None]
    if not all(isinstance(count, int) and count >= 1 for count in counts):
        raise ProfileError(f"a profile needs at least 1 sample, not {counts[0]!r}")
    if not np.allclose(profile.gram, profile.gram.T, rtol=1e-6) or (np.diag(profile.gram) < 0).any():
        raise ProfileError("gram must be symmetric, with a diagonal that is not negative")
    if any(not 1 <= k < n - 1 for k in profile.anchors) or sorted(set(profile.anchors)) != list(profile.anchors):
        raise ProfileError(f"anchors must be increasing steps from 1 to {n - 2}, not {profile.anchors}")
