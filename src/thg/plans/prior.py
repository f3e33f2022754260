"""What is assumed about a network of which nothing is known: every fitted number of the default, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prior:
    """Chosen on small networks of several kinds by `python -m benchmarks.prior` (docs/log.md has the tables).

    How many steps are evaluated:
        evaluations, power_of_steps: a run of N steps needs (E^-q + N^-q)^(-1/q) of them for 1 %, with this E and q.
        order: the error decreases with this power of their number.
        guidance: above guidance scale 5 the number grows with this power of w - 1.
        without_corrector: the factor if nothing can be corrected. fewest: never fewer than this.
    Where:
        by_index: the share of the density of evaluations that lies over step indices; the rest lies over angles.
        start, end: additional density of evaluations at both ends of a run, and the share of the run that it covers.
        power: the weight of a leap is this power of the density that it covers.
        first: steps that are always evaluated at the start.
    How outputs are predicted:
        slope, corrector: see `Plan`.
    How much of the errors of leaps remains in the final state, for the estimate after a run:
        remaining: if the network leaps, in the median of networks; from 0.03 to 0.6 on single ones.
        remaining_of_term: if the guidance term leaps. remaining_uncorrected: without a corrector.
        remaining_unknown: if the response of the solver is unknown. These three were fitted on the shipped models and
            on mixtures of Gaussians; `python -m benchmarks.fidelity` measures their accuracy.
    """

    evaluations: float = 20.5
    power_of_steps: float = 1.7
    order: float = 3.5
    guidance: float = 0.4
    without_corrector: float = 1.35
    fewest: int = 3
    by_index: float = 0.6
    start: tuple[float, float] = (1.0, 0.2)
    end: tuple[float, float] = (2.0, 0.12)
    power: float = 4.0
    first: int = 2
    slope: float = 0.95
    corrector: float = 0.85
    remaining: float = 0.12
    remaining_of_term: float = 0.34
    remaining_uncorrected: float = 0.9
    remaining_unknown: float = 0.5


PRIOR = Prior()
