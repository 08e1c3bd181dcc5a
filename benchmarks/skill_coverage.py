"""How often the bounds of skills hold: python benchmarks/skill_coverage.py

Owners differ in their base rate and in how well one model fits them. The truth is the skill that endlessly many rows
would give, with the scored rows' mixture of classes held fixed, as the bounds have it, or over all mixtures.
"""

import numpy as np

from equipoise.evaluation import PerClient, standing
from equipoise.evaluation.rules import worst_mean

TRIALS = 60
SETTINGS = {  # rows of each owner, bias, its spread over owners, slope, how the bias goes with log rows
    "12 owners of 100 rows, 5% positives": (np.full(12, 100), -3.5, 0.4, 1.0, 0.0),
    "30 owners of 40 rows, 10% positives": (np.full(30, 40), -2.6, 0.5, 1.0, 0.0),
    "5 of 20 and 15 of 300 rows, rising": (np.r_[np.full(5, 20), np.full(15, 300)], -1.5, 0.3, 1.5, 0.5),
    "5 of 20 and 15 of 300 rows, falling": (np.r_[np.full(5, 20), np.full(15, 300)], -1.5, 0.3, 1.5, -0.5),
    "12 owners of 100 rows, a good model": (np.full(12, 100), 0.0, 0.5, 3.0, 0.0),
    "50 owners of 10 to 200 rows": (np.random.default_rng(0).integers(10, 200, 50), -1.2, 0.5, 1.2, 0.0),
}


def coverage(setting: tuple, rng: np.random.Generator) -> np.ndarray:
    """[mixture fixed or not, 3]: the share of trials in which the mean, the worst fifth and all owners lie within."""
    rows, bias, spread, slope, tie = setting
    n = len(rows)
    biases = bias + spread * rng.normal(size=n) + tie * (np.log(rows) - np.log(rows).mean())
    slopes = slope + 0.3 * rng.normal(size=n)
    many = rng.normal(size=20_000)
    found = np.zeros((2, 3))
    for _ in range(TRIALS):
        skill, squares, truth = np.full(n, np.nan), np.full(n, np.nan), np.full((2, n), np.nan)
        for i in range(n):

            def drawn(count: int, i: int = i) -> tuple[np.ndarray, np.ndarray]:
                x = rng.normal(size=count)
                return x, rng.random(count) < 1 / (1 + np.exp(-(biases[i] + slopes[i] * x)))

            seen = drawn(3 * rows[i])[1]
            if seen.all() or not seen.any():
                continue
            x, y = drawn(rows[i])
            rate = (seen.sum() + 0.5) / (len(seen) + 1)
            base = -np.where(y, np.log(rate), np.log(1 - rate)).mean()
            losses = np.logaddexp(0, bias + slope * x) - y * (bias + slope * x)
            skill[i], squares[i] = 1 - losses.mean() / base, (losses**2).mean() / base**2
            chance, z = 1 / (1 + np.exp(-(biases[i] + slopes[i] * many))), bias + slope * many
            of_ones = (chance * np.logaddexp(0, -z)).mean() / chance.mean()
            of_zeros = ((1 - chance) * np.logaddexp(0, z)).mean() / (1 - chance).mean()
            truth[0, i] = 1 - (y.mean() * of_ones + (1 - y.mean()) * of_zeros) / base
            share = chance.mean()
            always = -(share * np.log(rate) + (1 - share) * np.log(1 - rate))
            truth[1, i] = 1 - (share * of_ones + (1 - share) * of_zeros) / always
        known = np.isfinite(skill)
        told = standing(PerClient(rows, {"skill": skill}, {}, {"skill": squares}), "skill")
        for k, true in enumerate(truth[:, known]):
            outside = (true < told.low[known]) | (true > told.high[known])
            worst = float(worst_mean(true, True))
            found[k] += (
                told.mean.low <= true.mean() <= told.mean.high,
                told.worst.low <= worst <= told.worst.high,
                not outside.any(),
            )
    return found / TRIALS


def main() -> None:
    rng = np.random.default_rng(3)
    for name, setting in SETTINGS.items():
        fixed, free = coverage(setting, rng)
        print(f"{name:<38} mixture fixed {fixed.round(2)}  over all mixtures {free.round(2)}", flush=True)


if __name__ == "__main__":
    main()
