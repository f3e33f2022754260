"""A profile: what a calibration has measured on a network, and the planners that use it.

It is independent of pipelines and networks, and stored as JSON.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import ArrayLike

from thg.errors import ProfileError
from thg.files import write_atomically
from thg.ode.outputs import Array, Prediction
from thg.plans.plan import Plan, Skips
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, PRIOR
from thg.profiles.planner import GridMethod, ProfilePlanner, output_weights

FORMAT = "thg-profile-2"
OLD = "thg-profile-1"  # it had the error constants, and the Gram matrix of the guidance terms
MODELS = Path(__file__).parent.parent / "models"


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares over samples, for each step."""

    count: int
    total: Array
    squares: Array

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of an array with one row per sample. Correctly rounded, so the order of samples does not matter."""
        rows = np.asarray(values, dtype=np.float64)
        return cls(len(rows), exact_sum(rows), exact_sum(rows**2))

    @property
    def mean(self) -> Array:
        return self.total / self.count

    @property
    def std(self) -> Array:
        """The standard deviation over samples."""
        return np.asarray(np.sqrt(np.maximum(self.squares / self.count - self.mean**2, 0.0)))


def exact_sum(rows: Array) -> Array:
    """The sum over the first axis, correctly rounded."""
    flat = rows.reshape(len(rows), -1)
    return np.array([math.fsum(column) for column in flat.T], dtype=np.float64).reshape(rows.shape[1:])


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
class Constants:
    """The paper's Algorithm 3, per step but the last (N-1 numbers).

    times: the N time steps. middle: the noise level at the midpoint of each step.
    tortoise, hare: norms of the errors of e_c and d at the midpoint. With the solver's factor, and w-1 for the hare,
        they are the paper's error constants. The last step needs none.
    tortoise_rate, hare_rate: norms of the time derivatives of e_c and d.
    """

    times: Array
    middle: Array
    tortoise: Moments
    hare: Moments
    tortoise_rate: Moments
    hare_rate: Moments


MOMENTS = ("tortoise", "hare", "tortoise_rate", "hare_rate")


@dataclass(frozen=True, eq=False)
class Profile:
    """The measurements of a calibration, per step of its run.

    about: model, scheduler, steps N, guidance scale, date, versions. samples: how many were measured.
    noise: sigma / (alpha + sigma) at each step and at the end (N+1 numbers; it is the time of a flow model, and a
        bounded function of the log-SNR for any other).
    gram: inner products of the outputs that reach the scheduler, mean over samples (N x N).
    anchors, survival: how much of an error made at these steps remains at the end of the run; may be missing.
    state_norm: the root mean square over samples of the norm of the state at the last step.
    constants: those of Algorithm 3, for the paper's planner; may be missing.
    A profile of thg 0.1 has nothing but the constants.
    """

    about: About
    samples: int
    noise: Array
    gram: Array | None = None
    anchors: tuple[int, ...] = ()
    survival: Array | None = None
    state_norm: float = 1.0
    constants: Constants | None = None
    skips: ClassVar[Skips] = "network"

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def steps(self) -> int:
        return self.about.steps

    def __repr__(self) -> str:
        a = self.about
        return (
            f"Profile({a.model or a.pipeline}, {a.scheduler}, steps={a.steps}, guidance_scale={a.guidance_scale:g}, "
            f"samples={self.samples}, date={a.date})"
        )

    @property
    def outputs(self) -> Array:
        """`gram`; an error if it was not measured."""
        if self.gram is None:
            raise ProfileError(
                "this profile was made by thg 0.1 and does not know the network's outputs, which plans for a budget or "
                "a tolerance need: calibrate again (thg calibrate), or take the paper's planner, rho=1.1"
            )
        return self.gram

    @property
    def algorithm3(self) -> Constants:
        """`constants`; an error if they were not measured."""
        if self.constants is None:
            raise ProfileError(
                "this profile has no error constants, which the paper's planner needs: measure them with "
                "thg.calibrate(..., algorithm3=True) (thg calibrate --algorithm3)"
            )
        return self.constants

    def error_factors(self) -> Array:
        """|B2| / (1 - 2^-p) of each step but the last: from the norm at its midpoint to its local error."""
        weights = output_weights(self.about.prediction, self.algorithm3.middle, self.noise[1:-1])
        return weights / (1 - 2.0**-self.about.order)

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
        method: GridMethod | None = None,
        hare_order: int | None = None,
        corrector: float | None = None,
        cutoff: int | None = None,
        boost: float = 1.0,
    ) -> ProfilePlanner:
        """A planner for any number of steps and any guidance scale near the measured ones.

        Common arguments:
            error: how far the final latents may be from the plain run's, relative to their own norm. It takes the
                fewest evaluations with which 95 % of the runs are predicted to stay within it.
            nfe: instead of it, a budget of evaluations; a float is a share of the plain run's, an int a count.
            rho: or the allowed ratio of hare error to tortoise error: the paper's planner, for a profile with the
                error constants of Algorithm 3.

        Advanced arguments:
            method: how to meet a budget. "optimal" lets the whole network leap and minimises the predicted error at the
                end of the run; "algorithm2" is the paper's, with the smallest rho that fits.
            hare_order, corrector, cutoff, boost: see `Plan`. Unless set, rho and "algorithm2" mean the paper's plan
                (order 1, no corrector), all else thg's (order 2, with the corrector). The cutoff is a step of the
                profile's own run, and moves with the noise level in a run of other length.
        """
        paper = rho is not None or cutoff is not None or boost != 1
        method = method or ("algorithm2" if paper else "optimal")
        usual_order, usual_corrector = (2, PRIOR.corrector) if method == "optimal" else (1, 0.0)
        order = usual_order if hare_order is None else hare_order
        corrector = usual_corrector if corrector is None else corrector
        return ProfilePlanner(self, error, nfe, rho, method, order, corrector, cutoff, boost)

    # -- files

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the profile atomically; replaces an existing file only with `force`."""
        path = Path(path)
        if path.exists() and not force:
            raise ProfileError(f"{path} exists already; write force=True (--force) to replace it")
        document: dict[str, Any] = {"format": FORMAT, "about": asdict(self.about), "samples": self.samples}
        document |= {"anchors": list(self.anchors), "state_norm": self.state_norm}
        if self.constants is not None:
            document["constants_samples"] = self.constants.tortoise.count
        document["arrays"] = {name: array.tolist() for name, array in _arrays_of(self).items()}
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
            return _from_document(document)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProfileError(f"{path} is damaged or was edited by hand ({type(error).__name__}: {error})") from None


def shipped_profiles() -> dict[str, Path]:
    """The files of the shipped profiles, by the names of their models."""
    return {path.parent.name: path for path in sorted(MODELS.glob("*/profile.json"))}


def shipped_profile(network: str) -> Profile | None:
    """The shipped profile of the network with this fingerprint, or None."""
    found = map(Profile.load, shipped_profiles().values())
    return next((profile for profile in found if profile.about.network == network), None)


def _arrays_of(profile: Profile) -> dict[str, Array]:
    """The arrays of a profile's file, by name."""
    given = {"noise": profile.noise, "gram": profile.gram, "survival": profile.survival}
    arrays = {name: array for name, array in given.items() if array is not None}
    if (constants := profile.constants) is not None:
        arrays |= {"times": constants.times, "middle": constants.middle}
        for name in MOMENTS:
            moments = getattr(constants, name)
            arrays |= {f"{name}.total": moments.total, f"{name}.squares": moments.squares}
    return arrays


def _from_document(document: Any) -> Profile:
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found not in (FORMAT, OLD):
        raise ProfileError(f"the format must be {FORMAT!r}, not {found!r}; calibrate again with this version of thg")
    if isinstance(document["arrays"], str):
        raise ProfileError("its arrays are in a second file, as thg 0.1 wrote it; calibrate again (thg calibrate)")
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in document["arrays"].items()}
    about, samples = document["about"], document["samples"]
    if unknown := sorted(set(about) - {f.name for f in fields(About)}):
        raise ProfileError(f"unknown field {unknown[0]!r}")
    constants = None
    if "tortoise.total" in arrays:
        count = document.get("constants_samples", samples)
        parts = {name: Moments(count, arrays[f"{name}.total"], arrays[f"{name}.squares"]) for name in MOMENTS}
        constants = Constants(arrays["times"], arrays["middle"], **parts)
    if found == OLD:
        return Profile(About(**about), samples, arrays["noise"], constants=constants)
    return Profile(
        About(**about),
        samples,
        arrays["noise"],
        arrays.get("gram"),
        tuple(int(k) for k in document["anchors"]),
        arrays.get("survival"),
        document["state_norm"],
        constants,
    )


# -- checks


def _validate(profile: Profile) -> None:
    about = profile.about
    n = about.steps
    if not isinstance(n, int) or n < 2:
        raise ProfileError(f"a profile needs at least 2 steps, not {n!r}")
    if about.prediction not in get_args(Prediction) or about.order not in (1, 2):
        raise ProfileError(f"prediction {about.prediction!r} or order {about.order!r} is not known")
    if not math.isfinite(about.guidance_scale) or about.guidance_scale < 1:
        raise ProfileError(f"guidance_scale must be 1 (no guidance) or above, not {about.guidance_scale!r}")
    if not math.isfinite(profile.state_norm) or profile.state_norm <= 0:
        raise ProfileError(f"state_norm must be above 0, not {profile.state_norm!r}")
    shapes = {"times": (n,), "noise": (n + 1,), "middle": (n - 1,), "gram": (n, n)}
    shapes |= {f"{name}.{part}": (n - 1,) for name in MOMENTS for part in ("total", "squares")}
    shapes["survival"] = (len(profile.anchors),)
    for name, array in _arrays_of(profile).items():
        if array.shape != shapes[name]:
            raise ProfileError(f"{name} must have the shape {shapes[name]}, not {array.shape}")
        if not np.isfinite(array).all():
            raise ProfileError(f"{name} holds NaN or infinity")
        if name not in ("times", "gram") and (array < 0).any():
            raise ProfileError(f"{name} holds negative numbers")
    if np.any(np.diff(profile.noise) > 0):
        raise ProfileError("the noise must fall along the run")
    counts = [profile.samples, *(getattr(profile.constants, name).count for name in MOMENTS if profile.constants)]
    if not all(isinstance(count, int) and count >= 1 for count in counts):
        raise ProfileError(f"a profile needs at least 1 sample, not {counts!r}")
    gram = profile.gram
    if gram is not None and (not np.allclose(gram, gram.T, rtol=1e-6) or (np.diag(gram) < 0).any()):
        raise ProfileError("gram must be symmetric, with a diagonal that is not negative")
    if any(not 1 <= k < n - 1 for k in profile.anchors) or sorted(set(profile.anchors)) != list(profile.anchors):
        raise ProfileError(f"anchors must be increasing steps from 1 to {n - 2}, not {profile.anchors}")
