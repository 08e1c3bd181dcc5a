"""A run over Flower where all goes well: what crosses, what is compiled, what comes back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import evaluation
from equipoise.deploy import flower
from equipoise.deploy.wire.messages import exchange_specs
from equipoise.errors import EquipoiseError, InputError
from equipoise.protocol import wire
from tests import programs
from tests.deploy.grid import InProcess
from tests.deploy.setting import HASTY, SHARD, SITES, app, federate, serve
from tests.problems import DIM, EVERY, N, assert_same, build, start, unequal

KEY = jax.random.key(3)


@pytest.mark.parametrize("name", ["fedavg", "scaffpd_secure", "delta_fl"])
def test_bytes_are_those_of_the_protocol_plus_framing(name, tmp_path):
    algorithm, rounds = build(name), 2
    federation = federate(algorithm, tmp_path)
    outcome = serve(algorithm, federation, KEY, rounds=rounds)
    messages = [m for m in federation.grid.asked if m.metadata.message_type == "train.exchange"]
    for w, t, asked in zip(
        wire(algorithm, start(), algorithm.prepare(unequal().client(0))),
        outcome.ledger.traffic,
        outcome.result.tally.asked,
        strict=True,
    ):
        sent = [m for m in messages if m.content["at"]["exchange"] == w.exchange]
        assert t.sent == t.received == len(sent) == asked
        assert (t.down, t.up) == (w.down * len(sent), w.up * len(sent))
        assert sum(len(a.data) for m in sent for a in m.content["message"].values()) == t.down
        assert all(
            0 < framing < 3000 for framing in (t.up_framing, t.down_framing)
        )  # per message, whatever the model's size


def test_framing_does_not_grow_with_the_model(tmp_path):
    def framing(dim):
        task = eq.tasks.ridge(dim, 0.1)
        algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(1), steps=1, local_lr=0.1)
        shard = eq.data.stack([(np.ones((2, dim)), np.ones(2))]).client(0)
        jobs = {"train": lambda: flower.Job(algorithm, jnp.zeros(dim), shard)}
        application = flower.client_app(lambda context: flower.Participant("a", tmp_path, jobs))
        federation = flower.gather(InProcess(application, ["a"]), n=1, timeouts=HASTY)
        traffic = flower.serve(algorithm, jnp.zeros(dim), federation, KEY, shard=shard, rounds=1).ledger.traffic[0]
        return traffic.down_framing, traffic.up_framing

    assert np.abs(np.subtract(framing(2000), framing(20))).max() < 10


def test_evaluation_is_an_exchange_like_any_other(tmp_path):
    """Another part of the same run, over the same sites."""
    task, data, rng = eq.tasks.ridge(DIM, 0.1), unequal(), np.random.default_rng(0)
    models = jnp.asarray(rng.normal(size=(3, DIM)))
    scores = {"rmse": evaluation.rmse}

    def jobs(name):
        blank = evaluation.evaluation(task, eq.cohorts.everyone(N), jnp.zeros((1, DIM)), scores=scores)
        return {"test": lambda: flower.Job(blank, jnp.zeros(DIM), data.client(SITES.index(name)))}

    federation = flower.gather(InProcess(app(None, tmp_path, jobs=jobs), SITES), n=N, timeouts=HASTY)
    algorithm = evaluation.evaluation(task, eq.cohorts.everyone(N), models, scores=scores)
    outcome = flower.serve(
        algorithm,
        models[0],
        federation,
        KEY,
        shard=SHARD,
        rounds=3,
        part="test",
        record=lambda server: server.heard,
    )
    table = evaluation.evaluate(task, models, data, scores=scores)
    assert_same(outcome.result.history, table)


def test_sites_answer_questions(tmp_path):
    answers = {"rows": lambda told: json.dumps({"told": told, "rows": 7})}
    federation = federate(build("fedavg"), tmp_path, answers=answers)
    assert federation.ask("rows", "please") == dict.fromkeys(SITES, '{"told": "please", "rows": 7}')
    with pytest.raises(EquipoiseError, match="'a' did not answer 'columns': error 2"):
        federation.ask("columns")
    federation.grid.stop("c")
    with pytest.raises(EquipoiseError, match="'c' did not answer 'rows': the site is not there"):
        federation.ask("rows")
    assert [(e.site, e.what) for e in federation.events if e.what != "joined"] == [("a", "failed"), ("c", "absent")]


def test_a_second_round_compiles_nothing(tmp_path):
    algorithm, compiled = build("scaffpd_secure"), {}

    def progress(done, rounds, last):
        compiled[done] = programs.count()

    federation = federate(algorithm, tmp_path)
    serve(algorithm, federation, KEY, rounds=4, progress=progress, record=algorithm.model)
    assert compiled[4] == compiled[2]


def test_what_is_read_is_read_off_the_functions():
    found = {
        n: {k: (g.reads, g.exchange.writes, g.alike) for k, g in exchange_specs(build(n), start(), SHARD).items()}
        for n in EVERY
    }
    assert found["fedavg"] == {"train": (False, False, True)}
    assert found["scaffold"] == {"train": (True, True, True)}
    assert found["scaffpd"] == {"collect": (False, True, True), "improve": (True, False, False)}
    assert found["scaffpd_secure"]["weigh"] == (True, False, False)
    assert found["scaffpd_partial"]["improve"][:2] == (True, False)  # a client may stand there twice


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"rounds": -1}, "-1 rounds cannot be run"),
        ({"rounds": 1, "every": 0}, "every is 0"),
        ({"rounds": 1, "run": "../x"}, "give letters"),
    ],
)
def test_settings_that_make_no_sense(how, sentence, tmp_path):
    algorithm = build("fedavg")
    with pytest.raises(InputError, match=sentence):
        serve(algorithm, federate(algorithm, tmp_path), KEY, **how)


def test_a_run_of_other_sites_is_not_resumed(tmp_path):
    algorithm = build("fedavg")
    outcome = serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=1)
    other = flower.gather(InProcess(app(algorithm, tmp_path), "abcdf"), sites="abcdf", timeouts=HASTY)
    with pytest.raises(InputError, match="had the sites a, b, c, d, e, not a, b, c, d, f"):
        serve(algorithm, other, KEY, rounds=2, resume=outcome)
    with pytest.raises(InputError, match="has 1 rounds already"):
        serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=0, resume=outcome)
    with pytest.raises(InputError, match="there are 5 sites but fedavg was built for 3"):
        serve(build("fedavg", n=3), federate(algorithm, tmp_path), KEY, rounds=1)
