"""Three small silos that differ: files, and settings to train on them."""

import numpy as np

SITES = ("east", "north", "south")
ROWS = {"east": 40, "north": 90, "south": 40}  # two of a size: they share programs


def write(folder, *, task="classification"):
    """east.csv, north.csv, south.csv: a number, a name and a label, related in another way at each."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, (site, m) in enumerate(ROWS.items()):
        rng = np.random.default_rng(k)
        age, dose = rng.normal(50 + 5 * k, 10, m), rng.normal(size=m)
        ward = rng.choice(["a", "b", "c"][: 2 + k % 2], m)
        score = 0.08 * (age - 50) + (1.5 - k) * dose + (ward == "b") + 0.3 * rng.normal(size=m)
        label = np.where(score > 0.5, "yes", "no") if task == "classification" else np.round(score, 4)
        lines = ["age,dose,ward,label"]
        lines += [f"{a:.4f},{d:.4f},{w},{y}" for a, d, w, y in zip(age, dose, ward, label, strict=True)]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


def settings(**sections):
    """SCAFF-PD, few rounds, exact, of losses, with nothing own, tuned or chosen; what `sections` say goes over it."""
    objective = sections.get("objective", {})
    has_rho = objective.get("name", "chi2") in ("chi2", "kl") and "price" not in objective
    base = {
        "name": "three",
        "model": {"l2": 0.01, "own": "none", "metric": "none"},
        "objective": {"of": "losses"} | ({"rho": 0.1} if has_rho else {}),
        "personal": {} if "personal" in sections else {"kind": "none"},
        "algorithm": {"name": "scaffpd", "steps": 3, "local_lr": 0.2, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": 4, "precision": "float64", "evaluate_every": 2},
        "federation": {"sites": list(SITES), "heavy": 1.0},
    }
    out = {key: {**base.get(key, {}), **value} for key, value in sections.items()}
    return {**base, **out}
