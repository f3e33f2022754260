"""The requests that the studio accepts, with their limits; anything else is refused before it reaches the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, model_validator

from thg.plans.plan import Skips
from thg.plans.tolerance import DEFAULT_ERROR

MAX_PROMPT = 1000
MAX_STEPS = 150
MAX_BATCH = 9
MAX_SIDE = 1536
MAX_GUIDANCE = 30.0
MAX_SEED = 2**32 - 1
MAX_SAMPLES = 64  # of a tune
MAX_CALLS = 2 * MAX_STEPS  # Heun calls the network twice a step
LIMITS = {  # of the page
    "prompt": MAX_PROMPT,
    "steps": MAX_STEPS,
    "guidance_scale": MAX_GUIDANCE,
    "seed": MAX_SEED - MAX_BATCH,
    "side": MAX_SIDE,
}

Share = Annotated[float, Field(gt=0, le=1.0)]
Tolerance = Annotated[float, Field(gt=0, lt=1)]
Strength = Annotated[float, Field(gt=0, le=1)]
Order = Literal[1, 2]


class Strict(BaseModel):
    """Unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class DefaultSpec(Strict):
    """The default grid, for a distance to plain CFG, or for a share of its evaluations."""

    kind: Literal["default"]
    error: Tolerance | None = None
    nfe: Share | None = None
    hare_order: Order | None = None
    corrector: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _one_at_most(self) -> DefaultSpec:
        if self.error is not None and self.nfe is not None:
            raise ValueError("the default plan takes either error or nfe")
        return self

    @property
    def tolerance(self) -> float:
        """The requested distance, if no budget is given."""
        return DEFAULT_ERROR if self.error is None else self.error

    @property
    def changes(self) -> dict[str, Any]:
        """The options that differ from the default plan."""
        given = {"hare_order": self.hare_order, "corrector": self.corrector}
        return {name: value for name, value in given.items() if value is not None}


class PaperSpec(Strict):
    """One of the paper's own plans, by its name."""

    kind: Literal["paper"]
    preset: str = Field(max_length=40)


class ProfileSpec(Strict):
    """The grid that the profile of the model gives for a tolerance, a budget, or an error ratio."""

    kind: Literal["profile"]
    rho: float | None = Field(default=None, gt=0, le=100)
    nfe: Share | None = None
    error: Tolerance | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> ProfileSpec:
        if [self.rho, self.nfe, self.error].count(None) != 2:
            raise ValueError("a profile's plan takes one of error, nfe and rho")
        return self


class CustomSpec(Strict):
    """A grid edited by hand, for a run of `of` network calls; it is stretched if the run has another length."""

    kind: Literal["custom"]
    of: int = Field(ge=1, le=MAX_CALLS)
    coarse: list[int] = Field(min_length=1, max_length=MAX_CALLS)
    skips: Skips = "unconditional"
    cutoff: int | None = Field(default=None, ge=1, le=MAX_CALLS)
    boost: float = Field(default=1.0, gt=0, le=4)
    hare_order: Order = 2
    corrector: float = Field(default=0.0, ge=0, le=1)
    slope: float = Field(default=1.0, ge=0, le=1)


class TunedSpec(Strict):
    """What `thg.tune` has measured on this model with this scheduler."""

    kind: Literal["tuned"]


PlanSpec = Annotated[DefaultSpec | PaperSpec | ProfileSpec | CustomSpec | TunedSpec, Field(discriminator="kind")]


class RunSettings(Strict):
    """What a run is described by before it starts. strength: of one that starts from a picture."""

    steps: int = Field(ge=1, le=MAX_STEPS)
    scheduler: str | None = Field(default=None, max_length=80)
    guidance_scale: float = Field(default=5.0, gt=1, le=MAX_GUIDANCE)
    strength: Strength | None = None


class PlanRequest(RunSettings):
    """What a plan depends on."""

    plan: PlanSpec


class RunRequest(PlanRequest):
    """One comparison: the same seeds with plain CFG and with thg. image: a file to start from."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    negative_prompt: str = Field(default="", max_length=MAX_PROMPT)
    seed: int = Field(ge=0, le=MAX_SEED - MAX_BATCH)
    batch: int = Field(default=1, ge=1, le=MAX_BATCH)
    fewer_steps: bool = False  # also plain CFG with fewer steps, at thg's number of evaluations
    width: int | None = Field(default=None, ge=16, le=MAX_SIDE, multiple_of=8)
    height: int | None = Field(default=None, ge=16, le=MAX_SIDE, multiple_of=8)
    image: Base64Bytes | None = None
    image_name: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _both_or_none(self) -> RunRequest:
        if (self.image is None) != (self.strength is None):
            raise ValueError("a run from a picture has both image and strength")
        return self

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.batch)


class TuneRequest(RunSettings):
    """`thg.tune` on these prompts, one sample each."""

    error: Tolerance = DEFAULT_ERROR
    prompts: list[Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]] = Field(
        min_length=1, max_length=MAX_SAMPLES
    )


class ModelRequest(Strict):
    """Another model, by its name in the list of models."""

    name: str = Field(max_length=1000)


KINDS = ("default", "paper", "profile", "custom", "tuned")


def in_words(errors: Sequence[Any]) -> str:
    """Pydantic's list of errors as one sentence for the user."""
    sentences = []
    for error in errors[:3]:
        place = ".".join(str(part) for part in error["loc"] if part not in ("body", *KINDS))
        message = error["msg"].removeprefix("Value error, ")
        sentences.append(f"{place}: {message[:1].lower()}{message[1:]}" if place else message)
    return "; ".join(sentences)
