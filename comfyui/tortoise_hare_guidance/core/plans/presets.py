# A copy of src/thg/plans/presets.py, made by comfyui/make_core.py: change it there.
"""The settings of the paper's experiments, and the coarse grids that its appendix prints.

Table "Obtained coarse timestep grid for different rho values" and the list of hyperparameters (N, w, rho, b, i_hi).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError
from ..plans.plan import Plan


@dataclass(frozen=True)
class Preset:
    """One model of the paper with the settings that it was run with."""

    name: str
    steps: int
    guidance_scale: float
    rho: float
    boost: float
    cutoff: int
    coarse: tuple[int, ...] | None  # None: the paper does not print the grid

    def plan(self) -> Plan:
        """The paper's plan: the hare is held over a leap."""
        if self.coarse is None:
            raise PlanError(
                f"the paper does not print the coarse grid of {self.name!r} "
                f"(steps={self.steps}, w={self.guidance_scale}, rho={self.rho}, boost={self.boost}, "
                f"cutoff={self.cutoff}); measure one: thg.calibrate(pipe, prompts, steps={self.steps}, "
                f"guidance_scale={self.guidance_scale}).planner(rho={self.rho}, boost={self.boost}, "
                f"cutoff={self.cutoff})"
            )
        return Plan(self.steps, self.coarse, self.cutoff, self.boost, hare_order=1)


_SD15_GRID = (*range(7), 8, 10, 12, 14, 17, 20, 23, 26, 28, 30, 32, 34, 36, *range(38, 50))
_SD35_GRID = (0, 1, 2, 4, 6, 9, 12, 15, 18, 20, 22, 23, 24, 25, 26)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("sd15", 50, 7.5, rho=1.1, boost=1.1, cutoff=38, coarse=_SD15_GRID),
        Preset("sd35-large", 28, 3.5, rho=1.0, boost=1.2, cutoff=21, coarse=_SD35_GRID),
        Preset("audioldm2", 50, 3.5, rho=0.9, boost=1.15, cutoff=39, coarse=None),
    )
}


def preset(name: str) -> Plan:
    """The plan of a named preset."""
    if name not in PRESETS:
        raise PlanError(f"there is no preset {name!r}; the presets are {', '.join(sorted(PRESETS))}")
    return PRESETS[name].plan()
