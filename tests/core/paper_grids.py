"""The coarse grids that the paper's appendix prints, as they stand there (with the final N where it prints it)."""


def _grid(*parts: int | range) -> tuple[int, ...]:
    return tuple(i for part in parts for i in (part if isinstance(part, range) else (part,)))


# Table "Obtained coarse timestep grid for different rho values"
SD15_BY_RHO = {
    0.9: _grid(range(9), range(10, 34, 2), range(34, 50)),
    1.0: _grid(range(8), range(9, 37, 2), range(37, 50)),
    1.1: _grid(range(7), range(8, 14, 2), range(14, 26, 3), range(26, 38, 2), range(38, 50)),
    1.2: _grid(range(6), 7, 9, range(11, 29, 3), range(29, 41, 2), range(41, 50)),
    1.3: _grid(range(5), 6, 8, range(10, 34, 3), range(34, 44, 2), range(44, 50)),
}
SD35_BY_RHO = {
    0.9: (0, 1, 2, 3, 5, 7, 10, 13, 16, 18, 20, 22, 23, 24, 25, 26),
    1.0: (0, 1, 2, 4, 6, 9, 12, 15, 18, 20, 22, 23, 24, 25, 26),
    1.1: (0, 1, 2, 4, 6, 9, 13, 17, 20, 22, 23, 24, 25, 27),
    1.2: (0, 1, 2, 4, 7, 11, 15, 19, 21, 23, 25, 27),
    1.3: (0, 1, 3, 6, 10, 15, 19, 22, 24, 26),
}
# Table "Ablation study for the hyperparameter rho": cutoff 38
SD15_NFE = {0.9: 75, 1.0: 73, 1.1: 70, 1.2: 69, 1.3: 67}

# Table "Obtained coarse timestep grid for different omega values", keyed by (w, rho)
_CHOSEN = _grid(SD15_BY_RHO[1.1][0], *SD15_BY_RHO[1.1][1:], 50)
SD15_BY_W = {
    (6.5, 0.93): _CHOSEN,
    (6.5, 1.1): _grid(range(5), 6, 8, range(10, 31, 3), range(31, 43, 2), range(43, 51)),
    (7.5, 1.1): _CHOSEN,
    (8.5, 1.1): _grid(range(9), range(10, 36, 2), range(36, 51)),
    (8.5, 1.22): _CHOSEN,
}
# Table "Obtained coarse timestep grid with fewer sample trajectories"
SD15_1K_TRIAL_8 = _grid(range(6), range(7, 13, 2), range(13, 28, 3), range(28, 38, 2), range(38, 51))
