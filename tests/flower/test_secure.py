"""A real federation of five sites with masked sums, TLS and authentication on; two of them are killed on the way."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.deploy.operations.processes import free_port
from equipoise.engines.simulator import simulate
from equipoise.experiment import config, records
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem, precision
from equipoise.privacy import fixed_point, policy
from tests.flower.federation import APPS, LONG, SharedProcess, parameters
from tests.flower.processes import Command, kill

SITES = ("ash", "birch", "cedar", "elm", "fir")
UNHARMED = ("ash", "cedar", "fir")  # share a process, as the sites of `equipoise flower local` may
ROUNDS = 6


def write_silos(folder):
    folder.mkdir()
    for k, site in enumerate(SITES):
        rng = np.random.default_rng(k)
        inputs = rng.normal(k / 3, 1, (30 + 10 * k, 2))
        labels = np.where(inputs @ [1.0, k - 2.0] + 0.3 * rng.normal(size=len(inputs)) > k / 3, "yes", "no")
        lines = [f"{a:.4f},{b:.4f},{y}" for (a, b), y in zip(inputs, labels, strict=True)]
        (folder / f"{site}.csv").write_text("\n".join(["age,dose,label", *lines]) + "\n")


def settings():
    return {
        "name": "secure",
        "model": {"l2": 0.1, "own": "none", "metric": "none"},
        "objective": {"name": "kl", "rho": 0.3, "of": "losses"},
        "algorithm": {
            "name": "scaffpd_sums",
            "steps": 3,
            "local_lr": 0.2,
            "rule": {"sigma": 0.5, "theta": 0.5},
        },
        "run": {"rounds": ROUNDS, "precision": "float64", "evaluate_every": 3},
        "federation": {"sites": list(SITES), "secure": True, "threshold": 3, "gather": 240.0, "exchange": 60.0},
    }


@pytest.mark.thorough(
    witness="deploy/test_secure_run.py::test_masked_as_on_one_machine_with_a_certificate_and_no_site_s_own_number"
)
def test_two_of_five_are_killed_and_the_sums_are_the_simulator_s_and_nobody_s_numbers_cross(tmp_path):
    """One dies in the middle of an exchange, another after it answered, when the sum is to be opened."""
    write_silos(tmp_path / "silos")
    faults = {"birch": [[2, "improve", "die"]], "elm": [[4, "open", "die"]]}
    (tmp_path / "faults.json").write_text(json.dumps(faults))
    Command("keys", "keys", "--sites", ",".join(SITES), folder=tmp_path, log="keys.log").wait(LONG)
    (tmp_path / "secure.toml").write_text(tomli_w.dumps(settings()))
    port, commands = free_port(), []
    for site in SITES:  # two may be lost at once
        (tmp_path / site).mkdir()
        (tmp_path / site / policy.FILE).write_text(policy.TRIAL + "threshold = 3\n" + APPS)
    try:
        env = {"EQUIPOISE_TEST_FAULTS": str(tmp_path / "faults.json")}
        for site in faults:
            words = ("site", site, f"silos/{site}.csv", "--server", f"127.0.0.1:{port}", "--folder", site)
            commands.append(Command(*words, folder=tmp_path, log=f"{site}.log", env=env))
        commands.append(SharedProcess(UNHARMED, f"127.0.0.1:{port}", folder=tmp_path, log="others.log", env=env))
        words = ("server", "secure.toml", "--port", port, "--out", "run", "--client", "tests.flower.recorded:app")
        server = Command(*words, folder=tmp_path, log="server.log")
        commands.append(server)
        server.wait(2 * LONG)
    finally:
        processes = [process for command in commands for process in command.tree()]
        for command in commands:
            command.stop()
        kill(processes)

    done = records.read(tmp_path / "run")
    assert all((tmp_path / f"happened-{site}-die").exists() for site in faults)
    assert "what the server learns: in every round, collect: of weight" in server.log.read_text()

    # Who answered, exchange by exchange: the simulator loses the same replies.
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    answered = {
        (line["round"], line["exchange"]): set(line["sites"])
        for line in lines
        if line["kind"] == "exchange" and line["part"] == "train"
    }
    assert "birch" not in answered[2, "improve"]
    assert all("elm" in answered[r, e] for r in range(4) for e in ("collect", "improve"))
    gone = jnp.array(
        [[[s not in answered[r, e] for s in SITES] for e in ("collect", "improve")] for r in range(ROUNDS)]
    )

    here = config.parse({**settings(), "data": {"silos": str(tmp_path / "silos")}})
    with precision(here):
        problem = build_problem(here)
        algorithm = build_method(here, problem).algorithm
        lost = lambda round, exchange, ids: gone[round, exchange][jnp.asarray(ids)]  # noqa: E731
        expected = simulate(algorithm, problem.x, problem.train, here.run.seed, rounds=ROUNDS, lost=lost)
        x = problem.artifact_params(algorithm.model(expected.server))
    error = fixed_point.largest_error(len(SITES), here.federation.secure_bound)
    assert error < 5e-12
    np.testing.assert_allclose(np.sort(parameters(done)), np.sort(x), rtol=0, atol=1e4 * error)
    assert done.rows[-1].objective is not None

    # No number of any site's total is in anything that crossed, neither as it is nor as an integer.
    bits = fixed_point.fraction_bits(len(SITES), here.federation.secure_bound)
    crossed, probes = b"".join((tmp_path / f"{site}.crossed").read_bytes() for site in SITES), 0
    assert len(crossed) > 100_000
    for site in SITES:
        for line in map(json.loads, (tmp_path / f"{site}.totals").read_text().splitlines()):
            for number in line["numbers"]:
                whole = np.int64(np.rint(np.ldexp(number, bits)))
                if number in (0.0, 0.5, 1.0) or abs(whole) < 1 << 16:
                    continue  # counts, and what is so small that its bytes are zeros: they are found by chance
                assert np.float64(number).tobytes() not in crossed, (site, number)
                assert whole.tobytes() not in crossed, (site, number)
                probes += 1
    assert probes > 200
