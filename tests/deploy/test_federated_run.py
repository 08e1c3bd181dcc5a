"""The whole app from a configuration, over the Grid in this process: as a local run on the same files."""

import json
import re
import warnings

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.deploy import agreement
from equipoise.deploy.flower import GivenUp, client_app
from equipoise.deploy.server import run as federated_run
from equipoise.deploy.server.run import begin_or_go_on, run_federation
from equipoise.deploy.site.run import AGREEMENTS, QUESTIONS, open_site
from equipoise.errors import InputError
from equipoise.experiment import config, records, run
from equipoise.privacy import policy
from tests.deploy.grid import InProcess
from tests.flower import silos
from tests.flower.silos import SITES
from tests.problems import few

HASTY = {"gather": 2.0, "hello": 1.0, "question": 5.0, "exchange": 5.0, "poll": 0.001}


def settings(**sections):
    federation = {"sites": list(SITES), "heavy": 1.0, **HASTY, **sections.pop("federation", {})}
    return silos.settings(federation=federation, **sections)


def grid(told, folder, homes, *, sites=SITES, fault=None, node=None):
    own = node or (lambda site: {"data": str(folder / f"{site}.csv")})
    for site in sites:
        policy.trial(homes / site)
    app = client_app(open_site, questions=QUESTIONS)
    return InProcess(
        app, sites, fault, lambda site: {"folder": str(homes / site), **own(site)}, {"settings": told.toml()}
    )


def both(tmp_path, told, **how):
    """The run over Flower and the run on one machine."""
    data = silos.write(tmp_path / "silos", task=how.pop("task", "classification"))
    here = config.parse(told)
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes", **how))
    return over, on_one_machine(told, data, tmp_path / "local")


known: dict = {}


def on_one_machine(told, data, folder):
    """The run on the same files: once for the same settings, of all tests."""
    files = tuple(path.read_bytes() for path in sorted(data.iterdir()))
    key = json.dumps(told, sort_keys=True), files
    if key not in known:
        known[key] = run.run(config.parse({**told, "data": {**told.get("data", {}), "silos": str(data)}}), folder)
    return known[key]


def close(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key])
    else:
        a, b = np.array(a, np.float64), np.array(b, np.float64)  # None becomes NaN
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def assert_the_same(over, local, *, gap=True):
    for mine, other in zip(over.rows, local.rows, strict=True):
        for name in ("round", "asked", "answered", "broken", "bytes_down", "bytes_up"):
            assert getattr(mine, name) == getattr(other, name), name
        for name in ("loss", "scores", "objective", *(["lam"] if mine.lam else [])):
            close(getattr(mine, name), getattr(other, name))
        if gap and mine.round:
            close(mine.gap, other.gap)
    mine, other = ([m.model_copy(update={"baseline": None}) for m in r.federation.members] for r in (over, local))
    assert mine == other
    close(*([m.baseline for m in r.federation.members] for r in (over, local)))
    assert over.federation.parameters == local.federation.parameters
    assert over.outcome.measure == local.outcome.measure
    close(over.outcome.summary, local.outcome.summary)
    mine, other = (artifact.load(r.path / records.MODEL) for r in (over, local))
    for a, b in zip(*(jax.tree.leaves(m.params) for m in (mine, other)), strict=True):
        close(a, b)
    assert mine.encoding.inputs == other.encoding.inputs


def test_scaffpd_as_on_one_machine(tmp_path):
    over, local = both(tmp_path, settings())
    assert_the_same(over, local)
    assert over.outcome.events == ()
    assert "Flower's framing added" in over.federation.notes[-1]
    for site in SITES:  # each has been told, and keeps, what was agreed
        (kept,) = (tmp_path / "homes" / site / AGREEMENTS).glob("*.json")
        assert records.read_record(kept, agreement.Agreement).sites == SITES


@pytest.mark.thorough(witness="searches/test_files.py::test_every_owner_in_its_own_way")
def test_sites_that_write_in_their_own_way(tmp_path):
    """Decimal commas, semicolons, odd line ends; and a site that can be read in two ways, which follows the others."""
    plain = silos.write(tmp_path / "plain")
    rewritten = tmp_path / "rewritten"
    rewritten.mkdir()
    for site in SITES:
        header, *rows = [line.split(",") for line in (plain / f"{site}.csv").read_text().splitlines()]
        digits = 3 if site == "south" else 4  # of ages above one: "51,234" may be thousands
        for row in rows:
            row[0] = f"{float(row[0]):.{digits}f}".replace(".", ",")
            row[1] = f"{100 * float(row[1]):.0f}"
        text = "\r\r\n".join(";".join(row) for row in [header, *rows])
        (rewritten / f"{site}.csv").write_bytes(text.encode() + b"\r\r\n")
    told = settings(run={"rounds": 1})
    over = run_federation(
        config.parse(told), tmp_path / "flower", grid(config.parse(told), rewritten, tmp_path / "homes")
    )
    encoding = artifact.load(over.path / records.MODEL).encoding
    whole = [float(row.split(",")[0]) for site in SITES for row in (plain / f"{site}.csv").read_text().splitlines()[1:]]
    assert encoding.features[0].kind == "number"
    assert encoding.features[0].seen == (",",)
    assert abs(encoding.features[0].mean - np.mean(whole)) < 1  # nobody's commas became thousands
    local = run.run(config.parse({**told, "data": {"silos": str(rewritten)}}), tmp_path / "local")
    assert artifact.load(local.path / records.MODEL).encoding == encoding
    assert_the_same(over, local)


METHODS = {
    "measured step size, sampled, minibatches": {
        "algorithm": {"name": "fedavg", "steps": 3, "local_lr": "auto", "cohort": 2, "rule": None},
        "model": {"batch": 4},
    },
    "state at the sites": {"algorithm": {"name": "scaffold", "steps": 3, "local_lr": 0.2, "rule": None}},
    "line search": {"algorithm": {"name": "scaffpd_ls", "steps": 3, "local_lr": "auto", "rule": None}},
    "single precision": {"run": {"rounds": 2, "precision": "float32"}, "algorithm": {"name": "scaffpd_secure"}},
    "no step sizes: a model at the server": {
        "algorithm": {"name": "scaffpd_model", "steps": 3, "local_lr": None, "rule": None}
    },
    "capped and clipped": {"federation": {"cap": 0.4, "clip": 1.2}},
}


@pytest.mark.thorough(witness="deploy/test_laws.py::test_over_flower_as_in_the_simulator[scaffold]")
@pytest.mark.parametrize("name", METHODS)
def test_other_methods_as_on_one_machine(name, tmp_path):
    told = settings(**METHODS[name])
    told["algorithm"] = {key: value for key, value in told["algorithm"].items() if value is not None}
    over, local = both(tmp_path, told)
    if name == "single precision":
        np.testing.assert_allclose(over.rows[-1].loss, local.rows[-1].loss, rtol=1e-4)
        return
    assert_the_same(over, local, gap="lam" in over.rows[-1].model_fields_set and over.rows[-1].lam is not None)
    if name == "capped and clipped":
        assert max(over.rows[-1].lam) <= 0.4 + 1e-12


def test_step_sizes_of_what_every_site_measures(tmp_path):
    told = settings(algorithm={"name": "scaffpd", "steps": 3, "local_lr": "auto", "rule": "tuned"}, run={"rounds": 16})
    here = config.parse(told)
    data = silos.write(tmp_path / "silos")
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes"))
    assert any("what every site has measured" in note for note in over.federation.notes)
    assert over.rows[-1].objective < over.rows[0].objective
    gaps = [row.gap for row in over.rows if row.gap is not None]
    assert gaps[-1] < 0.5 * gaps[0]
    agreed = records.read_record(tmp_path / "flower" / agreement.FILE, agreement.Agreement)
    assert agreed.curvature > 0
    assert agreed.slope > 0


def test_a_regression_from_arrays_of_a_function_of_ones_own(tmp_path):
    """(inputs, labels) by module:function; the file local runs read holds the same."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def rows(k):\n"
        "    rng = np.random.default_rng(k)\n"
        "    inputs = rng.normal(size=(30 + k, 3))\n"
        "    return inputs, inputs @ [1.0, k, -1.0] + 0.1 * rng.normal(size=30 + k)\n"
        "def east(): return rows(0)\n"
        "def north(): return rows(1)\n"
        "def south(): return rows(2)\n"
    )
    names: dict = {}
    exec((tmp_path / "mine.py").read_text(), names)
    data = tmp_path / "silos"
    data.mkdir()
    for site in SITES:
        inputs, labels = names[site]()
        np.savez(data / f"{site}.npz", inputs=inputs, labels=labels)
    told = settings(data={"task": "regression"})
    here = config.parse(told)
    own = grid(here, data, tmp_path / "homes", node=lambda s: {"loader": f"mine:{s}", "path": str(tmp_path)})
    over = run_federation(here, tmp_path / "flower", own)
    local = run.run(config.parse({**told, "data": {**told["data"], "silos": str(data)}}), tmp_path / "local")
    assert_the_same(over, local)
    assert over.outcome.measure == "rmse"
    assert all(low < high for low, high in zip(over.outcome.low, over.outcome.high, strict=True))


def test_rows_of_a_unit_stay_together_at_every_site(tmp_path):
    """Split and counted by patient, as on one machine; the server learns as how many rows they count, no patient."""
    data = silos.write(tmp_path / "silos")
    for site in SITES:
        first, *lines = (data / f"{site}.csv").read_text().splitlines()
        named = [f"{line},P-{k // 5}" for k, line in enumerate(lines)]
        (data / f"{site}.csv").write_text("\n".join([f"{first},patient", *named]) + "\n")
    told = settings(data={"unit": "patient"}, run={"rounds": 1, "precision": "float64"})
    here = config.parse(told)
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes"))
    local = run.run(config.parse({**told, "data": {"unit": "patient", "silos": str(data)}}), tmp_path / "local")
    assert_the_same(over, local)
    assert [member.counted for member in over.federation.members] == [m.test / 5 for m in over.federation.members]
    assert over.outcome.low == pytest.approx(local.outcome.low)
    agreed = (tmp_path / "flower" / agreement.FILE).read_text()
    assert "P-" not in agreed
    assert "patient" not in agreed
    assert any("as how many independent rows those of its units count" in note for note in over.federation.notes)
    with pytest.raises(InputError, match=r"data\.unit is a column of owners' tables"):
        config.parse(settings(data={"unit": "patient"}, model={"name": "torch"}))
    with pytest.raises(InputError, match=r"data\.unit is a column of owners' tables"):
        config.parse({"data": {"unit": "patient"}})


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_fault_is_a_lost_reply")
def test_faults_are_told_by_name_and_cost_one_reply_each(tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(settings(federation={"exchange": 0.3}))
    network = grid(here, data, tmp_path / "homes")

    def fault(message, reply):
        at = message.content.get("at", {"part": "", "round": -1, "exchange": ""})
        where = network.site(message), at["part"], at["round"], at["exchange"]
        if where == ("north", "train", 1, "collect"):
            raise ZeroDivisionError("patient Smith")
        return None if where in (("south", "train", 2, "improve"), ("east", "evaluate", 0, "evaluate")) else reply

    network.fault = fault
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = run_federation(here, tmp_path / "run", network)
    north, south, east = ([e for e in done.outcome.events if f"'{site}'" in e] for site in ("north", "south", "east"))
    assert north == ["'north' failed: error 2: patient Smith (round 2, collect)"]  # the grid's own words, not a site's
    late = "'south' did not answer in time: no reply within 0.3 s (round 3, improve)"
    assert south == [late, "'south' came back (round 4, collect)"]
    assert east == [
        "'east' did not answer in time: no reply within 0.3 s (3 times from evaluation after round 0 to round 4)"
    ]
    assert done.rows[1].loss[0] is None
    assert done.rows[1].objective is None
    assert done.rows[1].scores["accuracy"][1] is not None
    assert done.rows[-1].answered == (11, 10)


@pytest.mark.parametrize(
    "when", few([(1, "improve")], [(1, "improve"), (2, "evaluate"), "end"], "::test_a_server_that_was_killed_goes_on")
)
def test_a_server_that_was_killed_goes_on(when, tmp_path, monkeypatch):
    data, here = silos.write(tmp_path / "silos"), config.parse(settings())
    network, killed = grid(here, data, tmp_path / "homes"), []

    def fault(message, reply):
        at = message.content.get("at", {"round": -1, "exchange": ""})
        evaluated = sum(m.content.get("at", {}).get("exchange") == "evaluate" for m in network.asked)
        every = here.run.evaluate_every
        now = every * ((evaluated - 1) // 3) if at["exchange"] == "evaluate" else at["round"], at["exchange"]
        if now == when and not killed:
            killed.append(message)
            raise SystemExit
        return reply

    network.fault = fault
    if when == "end":
        monkeypatch.setattr(federated_run, "write_result", lambda *args, **options: exec("raise SystemExit"))
    with pytest.raises(SystemExit):
        run_federation(here, tmp_path / "flower", network)
    monkeypatch.undo()
    again = grid(here, data, tmp_path / "homes")
    over = run_federation(here, tmp_path / "flower", again)
    local = on_one_machine(settings(), data, tmp_path / "local")
    assert_the_same(over, local)
    asked = [m.content["at"]["round"] for m in again.asked if m.content.get("at", {}).get("exchange") == "collect"]
    expected = {(1, "improve"): [1, 2, 3], (2, "evaluate"): [2, 3], "end": []}[when]  # an evaluation holds nothing up
    assert asked == [round for round in expected for _ in SITES]


@pytest.mark.thorough(witness="deploy/test_faults.py::test_given_up_in_the_end_with_everything_in_hand_and_resumed")
def test_given_up_and_gone_on_with_when_the_sites_are_back(tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(settings(federation={"least": 3, "tries": 2}))
    network = grid(here, data, tmp_path / "homes")
    answers = []

    def fault(message, reply):
        answers.append(message.content.get("at", {}).get("round", -1))
        if network.site(message) == "north" and message.content.get("at", {}).get("round") == 1:
            raise ZeroDivisionError
        return reply

    network.fault = fault
    with pytest.raises(GivenUp, match="2 of 3 sites answered and 3 are needed, 2 times over"):
        run_federation(here, tmp_path / "flower", network)
    assert not records.finished(tmp_path / "flower")
    with pytest.raises(InputError, match=re.escape("`equipoise flower server")):
        run.resume(tmp_path / "flower")
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes"))
    local = on_one_machine(settings(), data, tmp_path / "local")
    assert over.rows[-1].bytes_up > local.rows[-1].bytes_up  # what was answered in vain has crossed too
    close(over.outcome.summary, local.outcome.summary)
    told = [e for e in over.outcome.events if "repeated" in e or "stopped" in e]
    assert told == [
        "the round was repeated: 2 of 3 sites answered and 3 are needed (round 2, collect)",
        "the run stopped: 2 of 3 sites answered and 3 are needed (round 2, collect)",
    ]


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"run": {"lost": 0.1}}, "run.lost is for simulations"),
        ({"federation": {"sites": ["east", "west"]}}, "west did not come: all sites have to be there"),
        ({"federation": {"sites": 2, "gather": 0.5}}, "3 sites came within 0.5 s"),
        ({"data": {"label": "nothing"}}, "'east' did not answer 'statistics': InputError; the log of 'east' says more"),
    ],
)
@pytest.mark.filterwarnings("ignore::equipoise.deploy.flower.FederationWarning")
def test_what_cannot_be_run_is_said_in_a_sentence(told, sentence, tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(settings(**told))
    with pytest.raises(Exception, match=re.escape(sentence)):
        run_federation(here, tmp_path / "run", grid(here, data, tmp_path / "homes"))


def test_a_federation_without_files_is_no_local_run(tmp_path):
    with pytest.raises(InputError, match="the data of \\[federation\\] is at its sites"):
        run.run(config.parse(settings()), tmp_path)


def test_other_settings_in_the_same_folder_are_refused(tmp_path):
    data = silos.write(tmp_path / "silos")
    told = config.parse(settings())
    begin_or_go_on(told, tmp_path / "run")
    other = config.parse(settings(run={"seed": 1}))
    with pytest.raises(InputError, match="holds a run with other settings"):
        run_federation(other, tmp_path / "run", grid(other, data, tmp_path / "homes"))
