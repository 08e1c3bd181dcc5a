"""Makes up three hospitals: silos/north.csv, silos/east.csv, silos/south.csv; the same ones every time.

Whether a patient comes back depends on age, on the days in hospital and on the ward, in a slightly different way in
each hospital, and the small one differs most: a model for the average serves it worst.
"""

from pathlib import Path

import numpy as np

HOSPITALS = {"north": (400, 0.0), "east": (250, 0.4), "south": (120, 1.6)}  # patients, how much it differs


def main() -> None:
    """Writes the three files."""
    folder = Path(__file__).parent / "silos"
    folder.mkdir(exist_ok=True)
    for seed, (name, (patients, differs)) in enumerate(HOSPITALS.items()):
        rng = np.random.default_rng(seed)
        age = rng.normal(60 - 4 * seed, 12, patients).round()
        days = rng.gamma(2.0, 2.5, patients).round(1)
        ward = rng.choice(["heart", "lung", "bone"], patients, p=[0.5, 0.3, 0.2])
        score = 0.06 * (age - 60) + (0.5 - 0.6 * differs) * (days - 5) + (1 - differs) * (ward == "heart")
        back = score + rng.logistic(0, 0.7, patients) > 0.3
        with (folder / f"{name}.csv").open("w") as file:
            file.write("age,days,ward,readmitted\n")
            for row in zip(age, days, ward, np.where(back, "yes", "no"), strict=True):
                file.write("{:.0f},{:.1f},{},{}\n".format(*row))


if __name__ == "__main__":
    main()
