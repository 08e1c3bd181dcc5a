"""What masking costs: `python -m benchmarks.secure_sums` prints bytes and seconds of an exchange, masked and plain.

Everything but the network, in one process: a site's encoding, masks and file; the server's sum, the opening, the masks
that it takes off. One site of each cohort is missing, so that a key has to be recovered too. Plain totals are float64.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from equipoise.privacy import fixed_point
from equipoise.privacy.identity import Identity
from equipoise.privacy.site_masks import SiteMasks, least_threshold
from equipoise.privacy.unmasking import Batch, recover, unmasked

BOUND, EXCHANGES = 2.0**20, 64


def measured(n: int, d: int, folder: Path) -> dict[str, float]:
    names = [f"site{k:02d}" for k in range(n)]
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    roster = {name: key.public_key() for name, key in keys.items()}
    sites = {name: SiteMasks(Identity(name, key, roster), folder / name) for name, key in keys.items()}
    threshold, head = least_threshold(n), {"run": "r", "batch": "b"}

    clock = time.perf_counter()
    ask = {**head, "step": "keys", "members": names, "threshold": threshold, "count": EXCHANGES}
    given = {name: site.answer(ask) for name, site in sites.items()}
    down, up = 0, len(given[names[0]]["keys"]) + len(given[names[0]]["signature"])
    all_keys = {"keys": [g["keys"] for g in given.values()], "signatures": [g["signature"] for g in given.values()]}
    down += sum(map(len, all_keys["keys"] + all_keys["signatures"]))
    sealed = {name: site.answer({**head, "step": "shares", **all_keys})["sealed"] for name, site in sites.items()}
    up += sum(map(len, sealed[names[0]]))
    for k, site in enumerate(sites.values()):
        mine = [sealed[name][k] for name in names]
        down += sum(map(len, mine)) if k == 0 else 0
        site.answer({**head, "step": "deliver", "sealed": mine})
    prepare = time.perf_counter() - clock
    batch = Batch("r", "b", tuple(names), threshold, EXCHANGES, {name: g["keys"] for name, g in given.items()})

    rng = np.random.default_rng(0)
    totals = {name: rng.normal(size=d) for name in names}
    answered = names[1:] if n > 3 else names
    clock = time.perf_counter()
    hidden = {}
    for name in answered:
        total = totals[name]
        question = {"run": "r", "batch": "b", "exchange": 0}
        hidden[name] = sites[name].mask(
            question, lambda m, fewest, t=total: fixed_point.encode(t, m, BOUND), b"context"
        )
    mask = (time.perf_counter() - clock) / len(answered)

    clock = time.perf_counter()
    total = np.zeros(d, np.uint64)
    for y in hidden.values():
        total += y
    missing = [name for name in names if name not in answered]
    question = {**head, "step": "open", "exchange": 0, "answered": answered, "missing": missing}
    shares = {name: sites[name].answer(question)["shares"] for name in answered[:threshold]}
    secrets = recover(batch, 0, answered, shares)
    found = fixed_point.decode(unmasked(total, batch, 0, secrets, b"context"), totals[names[0]], n, BOUND)
    server = time.perf_counter() - clock
    exact = sum(totals[name] for name in answered)
    assert np.abs(found - exact).max() <= fixed_point.largest_error(n, BOUND) + 1e-12

    clock = time.perf_counter()
    plain = np.zeros(d)
    for name in answered:
        plain += totals[name]
    return {
        "site_ms": 1e3 * mask,
        "server_ms": 1e3 * server,
        "plain_ms": 1e3 * (time.perf_counter() - clock),
        "prepare_ms": 1e3 * prepare / n / EXCHANGES,
        "up": 8 * d + 33 * n,
        "setup_kb": (down + up) / EXCHANGES / 1e3,
        "plain_up": 8 * d,
    }


def main() -> None:
    print(
        "| numbers | sites | site, ms | server, ms | plain server, ms | setup, ms | up, kB | plain up, kB | setup, kB |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for d in (10_000, 1_000_000):
        for n in (3, 10, 30):
            with tempfile.TemporaryDirectory() as folder:
                r = measured(n, d, Path(folder))
            print(
                f"| {d:,} | {n} | {r['site_ms']:.1f} | {r['server_ms']:.1f} | {r['plain_ms']:.1f} | "
                f"{r['prepare_ms']:.2f} | {r['up'] / 1e3:,.1f} | {r['plain_up'] / 1e3:,.1f} | {r['setup_kb']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
