"""A server that asks for single rows, and what an owner of rows decides whatever it asks."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict

import equipoise as eq
from equipoise import algorithms, tensors
from equipoise.cli import app
from equipoise.data.shards import shard_like
from equipoise.data.silos import Encoding, Statistics, agree, open_site
from equipoise.data.silos.statistics import Options
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.messages import Job
from equipoise.deploy.site.owner import (
    SPLIT,
    check_rows,
    check_shares,
    check_step,
    encoded,
    lengths,
    model_in,
    own_key,
)
from equipoise.deploy.wire.messages import read_text, text
from equipoise.errors import EquipoiseError, Refusal
from equipoise.experiment import config
from equipoise.privacy import accounting, audit, policy
from equipoise.protocol import wire
from equipoise.tasks.examples import draw
from tests.deploy.test_federated_run import grid, settings
from tests.deploy.test_secure_run import node, told
from tests.flower import silos
from tests.flower.silos import SITES

NORTH, ROWS = "north", 60
DEFAULT = "ask = false\n"  # all else as without the file


def write(folder, rows=ROWS):
    """A table with a column of names, each once, and one that hardly anybody has a number in."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = ["patient,age,ward,marker,ill,label"]
    for k in range(rows):
        marker = f"{rng.normal():.4f}" if k < 3 else ""
        ward = "rare" if k < 2 else "ab"[k % 2]
        lines.append(f"patient {k},{rng.normal(50, 10):.4f},{ward},{marker},{int(k < 2)},{('yes', 'no')[k % 3 == 0]}")
    for site in SITES:
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


class Asked:
    """One site by itself, and a server that asks it whatever it likes."""

    def __init__(self, tmp_path, rules=DEFAULT):
        self.data, self.homes = write(tmp_path / "silos"), tmp_path / "homes"
        self.home = self.homes / NORTH
        self.home.mkdir(parents=True)
        (self.home / policy.FILE).write_text(rules)

    def __call__(self, **sections):
        here = config.parse(settings(**{"data": {"drop": ["patient"], **sections.pop("data", {})}, **sections}))
        place = grid(here, self.data, self.homes)
        (number,) = (n for n, c in place.contexts.items() if c.node_config["site"] == NORTH)
        message = Message(text("question", ""), number, "query.statistics")
        message.metadata.__dict__["_message_id"] = "1"
        answer = place.app(message, place.contexts[number]).content
        said = read_text(answer, "refused")
        assert said is None or audit.verify(self.home).entries[-1]["why"] == said
        return said if said is not None else json.loads(read_text(answer, "answer"))["statistics"]


FRESH = {
    "a training set of one row": ({"data": {"test": 0.98}}, "would train on 1 rows and tells nothing of fewer than 20"),
    "a batch of one row": ({"model": {"batch": 1}}, "a local step would be on 1 rows"),
    "names as the label": (
        {"data": {"label": "patient", "drop": [], "task": "classification"}},
        "none of them is told",
    ),
}
SECOND = {
    "another seed": ({"run": {"seed": 1}}, "once and for all, with data.test = 0.2 and run.seed = 0"),
    "another fraction": ({"data": {"test": 0.21}}, "this run has data.test = 0.21"),
    "all cells but one missing": ({"data": {"missing": ["", "a"]}}, "told of its table with another data.missing"),
}


@pytest.mark.parametrize("way", FRESH)
def test_a_server_that_asks_for_single_rows_is_refused(way, tmp_path):
    sections, sentence = FRESH[way]
    assert sentence in Asked(tmp_path)(**sections)


def test_a_second_look_that_differs_by_few_rows_is_refused(tmp_path):
    """The split, and which cells count, stay as they were told of first; the same question has the same answer."""
    asked = Asked(tmp_path)
    first = asked()
    for sections, sentence in SECOND.values():
        assert sentence in asked(**sections)
    assert asked() == first
    assert Statistics.from_json(asked(data={"label": "ward", "drop": ["patient"]})).rows == 48  # as every honest run

    asked.data = write(asked.data, ROWS + 1)  # somebody has come
    assert "changed by fewer than 20 rows" in asked()
    asked.data = write(asked.data, ROWS + 30)
    assert Statistics.from_json(asked()).rows == 72
    asked.data = write(asked.data, ROWS)
    (asked.home / SPLIT).unlink()  # the owner's own hand
    assert asked() == first


def test_no_name_and_no_number_of_few_rows_is_told(tmp_path):
    """Whatever the column is called, and whatever the server sets min_count to."""
    asked = Asked(tmp_path)
    for sections in ({"drop": [], "categorical": ["patient"], "min_count": 1}, {"drop": []}):
        said = asked(data=sections)
        assert "patient 1" not in said
        assert "rare" not in Statistics.from_json(said).columns[2].categories
    columns = {c.name: c for c in Statistics.from_json(asked()).columns}
    for few in ("marker", "ill"):
        assert (columns[few].n, columns[few].mean, columns[few].missing) == (0, 0.0, 48)
    assert columns["age"].n == 48


def test_the_owner_names_the_label_and_the_columns(tmp_path):
    asked = Asked(tmp_path, f'{DEFAULT}label = "label"\ncolumns = ["age", "ward"]\n')
    assert "the label of this site is 'label'" in asked(data={"label": "ward"})
    assert [c.name for c in Statistics.from_json(asked()).columns] == ["age", "ward"]


def test_a_guessed_text_is_nothing_that_a_gradient_could_show(tmp_path):
    """A server that puts a rare text into the encoding learns nothing of whose rows have it."""
    site = open_site(write(tmp_path) / f"{NORTH}.csv", Options(drop=("patient",)), test=0.0)
    options = Options(drop=("patient",), min_count=10)
    encoding = agree([site.statistics(options)], options)
    ward = next(f for f in encoding.features if f.name == "ward")
    guess = ward._replace(categories=("a", "b", "rare"))
    guessed = Encoding.from_json(
        encoding._replace(features=tuple(guess if f is ward else f for f in encoding.features)).to_json()
    )
    at = guessed.inputs.index("ward=rare")
    (seen, _), _ = site.encode(guessed)
    (hidden, _), _ = site.encode(guessed, 10, 20)
    assert seen[:, at].sum() == 2
    assert hidden[:, at].sum() == 0
    wards = [guessed.inputs.index(name) for name in ("ward=a", "ward=b")]
    assert (hidden[:, wards].sum(1) == 1).all()  # nor are they those who are left over: they go with the most
    age = guessed.inputs.index("age")
    np.testing.assert_array_equal(seen[:, age], hidden[:, age])


@pytest.mark.parametrize(
    ("column", "mean"), [("marker", 0.0), ("marker", 7.0), ("ill", 0.0), ("ill", 1.0), ("ill", 9.0)]
)
def test_numbers_that_few_rows_have_are_nothing_that_a_gradient_could_show(column, mean, tmp_path):
    """However a server lets them be encoded: three rows have a marker, and two a 1 among zeros."""
    options = Options(drop=("patient",), indicators=True)
    site = open_site(write(tmp_path) / f"{NORTH}.csv", options, test=0.0)
    encoding = agree([site.statistics(options)], options)
    features = tuple(f._replace(mean=mean, scale=1.0) if f.name == column else f for f in encoding.features)
    asked = encoding._replace(features=features)
    at = asked.inputs.index(column)
    (seen, _), _ = site.encode(asked)
    (hidden, _), _ = site.encode(asked, 10, 20)
    assert len(np.unique(seen[:, at])) > 1
    assert len(np.unique(hidden[:, at])) == 1
    for name in ("age", "ward=a"):
        k = asked.inputs.index(name)
        assert len(np.unique(hidden[:, k])) > 1
    gap = asked.inputs.index("marker is missing")
    assert seen[:, gap].sum() == 57
    assert hidden[:, gap].sum() == 60


def test_a_class_of_few_rows_is_not_trained_on(tmp_path):
    """The gradient of a softmax has a part for every class: with a guessed class of two rows it would be these rows."""
    folder = write(tmp_path)
    options = Options(label="ward", task="classification", drop=("patient",))
    site = open_site(folder / f"{NORTH}.csv", options, test=0.0)
    guessed = agree([site.statistics(options)], options)  # names the ward of two
    assert guessed.target.classes == ("a", "b", "rare")
    here = config.parse(settings(data={"label": "ward", "task": "classification", "drop": ["patient"]}))
    for rules, classes in ((policy.Policy(), [29, 29]), (policy.Policy(min_count=1), [29, 29, 2])):
        (inputs, labels), *_ = encoded(site, guessed, here, rules)
        assert np.bincount(labels).tolist() == classes
        assert len(inputs) == len(labels)


def other_encodings(encoding):
    """What a server could send instead of what was agreed: another label, another column, other readings of cells."""
    age = next(f for f in encoding.features if f.name == "age")
    yield encoding._replace(target=encoding.target._replace(name="ward", classes=("a", "b")))
    yield encoding._replace(features=(*encoding.features, age._replace(name="label")))
    yield encoding._replace(features=(*encoding.features, age._replace(name="patient")))
    yield encoding._replace(missing=(*encoding.missing, "a"))
    yield encoding._replace(conventions=encoding.conventions._replace(decimal=","))


def test_an_encoding_that_the_run_was_not_approved_for_is_refused(tmp_path):
    options = Options(drop=("patient",))
    site = open_site(write(tmp_path) / f"{NORTH}.csv", options, test=0.0)
    encoding, here = agree([site.statistics(options)], options), config.parse(settings(data={"drop": ["patient"]}))
    encoded(site, encoding, here, policy.Policy())
    for other in other_encodings(encoding):
        with pytest.raises(Refusal, match="in another way than the run's configuration says"):
            encoded(site, other, here, policy.Policy())


def test_a_unit_that_the_owner_does_not_give_is_refused(tmp_path):
    asked = Asked(tmp_path, f'{DEFAULT}label = "label"\ncolumns = ["age"]\n')
    home = audit.verify(asked.home).entries
    assert not home
    place = grid(config.parse(settings(data={"unit": "patient"})), asked.data, asked.homes)
    (number,) = (n for n, c in place.contexts.items() if c.node_config["site"] == NORTH)
    message = Message(text("question", ""), number, "query.statistics")
    message.metadata.__dict__["_message_id"] = "1"
    said = read_text(place.app(message, place.contexts[number]).content, "refused")
    assert said is not None
    assert "this site gives the columns age, and data.unit is 'patient'" in said


def test_without_a_file_a_site_asks_and_its_owner_is_told_how_many_rows_stand_behind(tmp_path):
    asked = Asked(tmp_path)
    (asked.home / policy.FILE).unlink()
    grid_of = asked.homes / NORTH
    here = config.parse(settings(data={"drop": ["patient"]}, model={"batch": 32}))
    place = grid(here, asked.data, asked.homes)
    (grid_of / policy.FILE).unlink()  # which the helper has put there
    (number,) = (n for n, c in place.contexts.items() if c.node_config["site"] == NORTH)
    message = Message(text("question", ""), number, "query.statistics")
    message.metadata.__dict__["_message_id"] = "1"
    answer = place.app(message, place.contexts[number]).content
    assert "has not been approved here" in read_text(answer, "refused")
    digest = policy.digest_of(here.toml())
    shown = CliRunner().invoke(app, ["flower", "approve", digest[:8], "--site", str(grid_of), "--yes"])
    said = " ".join(shown.output.split())
    assert shown.exit_code == 0, said
    assert "behind every statistic, loss and gradient stand 48 rows of this site" in said
    assert "behind every local step stand 32 rows, drawn anew" in said
    assert "behind every score stand 12 rows that are held out" in said
    assert read_text(place.app(message, place.contexts[number]).content, "answer") is not None


@pytest.mark.thorough(witness="::test_the_least_number_of_rows_is_the_policy_s")
def test_scores_of_few_rows_stay_and_the_run_goes_on_under_a_budget(tmp_path):
    """A live run: north has the default policy and a budget, and 18 of its 90 rows held out."""
    method = {"name": "scaffpd", "steps": 1, "local_lr": 0.2, "rule": {"sigma": 0.5, "theta": 0.0}}
    here = config.parse(settings(algorithm=method, run={"rounds": 2}, privacy={"epsilon": 2.0, "delta": 1e-5}))
    home = tmp_path / "homes" / NORTH
    home.mkdir(parents=True)
    rules = f'{DEFAULT}epsilon = 2.5\noutside_budget = ["statistics", "evaluation"]\n'
    (home / policy.FILE).write_text(rules)
    data = silos.write(tmp_path / "silos")
    over = run_federation(here, tmp_path / "run", grid(here, data, tmp_path / "homes"))
    assert over.rows[-1].scores["accuracy"][SITES.index(NORTH)] is None
    assert any("'north' has 18 rows to score a model with and tells no score of fewer than 20" in e
               for e in over.outcome.events)  # fmt: skip
    assert accounting.epsilon_of(accounting.spent(home)["mu2"] ** 0.5, 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert all("score" in e for e in over.outcome.events)


def test_a_model_whose_gradient_is_one_row(tmp_path):
    """Where all rows but one fit, the gradient is that row; at the start none stands out."""
    rng = np.random.default_rng(1)
    inputs, w = rng.normal(size=(40, 3)), np.array([1.0, -2.0, 0.5])
    labels = inputs @ w
    labels[7] += 5.0
    task = eq.tasks.ridge(3, mu=0.1)
    shard = eq.data.stack([(inputs, labels)]).client(0)
    measure = lengths(task.grad, task.own, 0.1)
    longest, total = map(float, measure(jnp.asarray(w), shard))
    assert longest / total > 0.999
    found = np.asarray(task.grad(jnp.asarray(w), shard)) - 0.1 * w
    np.testing.assert_allclose(found / found[0], inputs[7] / inputs[7, 0], rtol=1e-6)  # the row, for whoever asks
    own = np.linalg.norm(inputs * (inputs @ np.zeros(3) - labels)[:, None], axis=1)
    longest, total = map(float, measure(jnp.zeros(3), shard))
    assert longest / total == pytest.approx(own.max() / own.sum(), rel=1e-6)
    assert longest / total < 0.5
    check_step(np.ones(4), np.zeros(4), 1.0)
    with pytest.raises(Refusal, match="is 100 away from where it began, and this site accepts up to 10"):
        check_step(np.full(4, 100.0), np.zeros(4), 10.0)


def test_no_limit_keeps_two_models_of_a_server_s_own_from_telling_a_row():
    """As the docs and `approve` say: the row between two thresholds is their gradients' difference; nothing is refused.

    With a class that nobody has, the last row beyond a threshold is that class's part of one gradient.
    """
    rng, rows, d, rules = np.random.default_rng(0), 100, 3, policy.Policy()
    inputs = rng.normal(size=(rows, d))
    shard = eq.data.stack([(inputs, (inputs[:, 0] > 0).astype(np.int32))]).client(0)
    task = eq.tasks.softmax_regression(d, 3)
    order = np.argsort(inputs[:, 0])
    cuts = (inputs[order[1:], 0] + inputs[order[:-1], 0]) / 2

    def gradient_of_invented_class(cut):
        """Its weights and its bias; the model is one that the owner's limits allow in a run of 100 rounds."""
        steep = 20 / np.abs(inputs[:, 0] - cut).min()
        weights, bias = np.zeros((3, d)), np.array([0.0, 0.0, -steep * cut])
        weights[2, 0] = steep
        x = np.concatenate([weights.ravel(), bias])
        check_step(x, np.zeros(x.size), rules.most_step * 100)
        longest, total = map(float, lengths(task.grad, task.own, 0.0)(jnp.asarray(x), shard))
        assert longest / total < 0.2 < rules.most_of_row
        gradient = np.asarray(task.grad(jnp.asarray(x), shard))
        return np.append(gradient[2 * d : 3 * d], gradient[-1])

    last = gradient_of_invented_class(cuts[-1])
    np.testing.assert_allclose(last[:d] / last[d], inputs[order[-1]], rtol=1e-6)
    between = gradient_of_invented_class(cuts[49]) - gradient_of_invented_class(cuts[50])
    np.testing.assert_allclose(between[:d] / between[d], inputs[order[50]], rtol=1e-6)


def test_the_rows_of_a_minibatch_are_drawn_by_the_sites_own_key(tmp_path):
    """With the server's, a gradient for each of as many keys as there are rows tells all of the rows' gradients."""
    rng, rows, d = np.random.default_rng(0), 30, 4
    inputs, labels = rng.normal(size=(rows, d)), rng.normal(size=rows)
    shard = eq.data.stack([(inputs, labels)]).client(0)
    task = eq.tasks.ridge(d, mu=0.0, batch=20)
    rules, x = {how: policy.Policy(draws=how) for how in ("asked", "own")}, jnp.zeros(d)
    gradient = jax.jit(lambda words: task.grad(x, shard, jax.random.wrap_key_data(words)))
    rows_of = jax.jit(lambda words: draw(jax.random.wrap_key_data(words), shard, (20,)))

    def solved(how):
        """The rows' gradients, as the server would find them."""
        asked = [[0, k] for k in range(2 * rows)]
        used = [np.array(own_key(tmp_path, rules[how], "run", words), np.uint32) for words in asked]
        replies = np.array([gradient(words) for words in used])
        guessed = [np.bincount(rows_of(np.array(words, np.uint32)), minlength=rows) / 20 for words in asked]
        return np.linalg.lstsq(np.array(guessed), replies, rcond=None)[0]

    own = -2 * labels[:, None] * inputs
    np.testing.assert_allclose(solved("asked"), own, atol=1e-8)
    assert np.corrcoef(solved("own").ravel(), own.ravel())[0, 1] < 0.5
    again = [own_key(tmp_path, rules["own"], "run", [1, 2]) for _ in range(2)]
    assert again[0] == again[1] != own_key(tmp_path, rules["own"], "another", [1, 2])  # a message that is sent again


def test_all_rows_at_one_site_are_all_of_a_masked_sum():
    def weighed(how):
        plan = settings(objective={"name": "average"}, federation={"secure": True})
        plan["algorithm"] = {"name": "fedavg", "steps": 1, "local_lr": 0.1, "weights": how}
        return config.parse(plan)

    rules, rows, here = policy.Policy(), {"east": 30, "north": 20_000, "south": 60}, weighed("samples")
    with pytest.raises(Refusal, match=r"a site has 0\.9955 of all rows and so of the masked sums"):
        check_shares(rules, here, "south", rows, 60)
    check_shares(rules, here, "south", rows | {"north": 900}, 60)
    with pytest.raises(Refusal, match="'south' has told of 60 rows, and all were told of 60000"):
        check_shares(rules, here, "south", rows | {"south": 60_000}, 60)
    check_shares(rules, weighed("uniform"), "south", rows, 60)


def test_all_rows_at_one_site_are_all_of_the_sums_of_features():
    """Whatever the algorithm counts, they are sums over rows."""
    method = {"name": "fedavg", "steps": 1, "local_lr": 0.1}
    convexify = {"kind": "coordinates", "features": 9, "algorithm": method}
    plan = settings(objective={"name": "average"}, federation={"secure": True}, convexify=convexify)
    plan |= {"algorithm": method, "model": {"name": "mlp", "hidden": [5]}}
    rows = {"east": 30, "north": 20_000, "south": 60}
    with pytest.raises(
        Refusal, match=r"a site has 0\.9955 of all rows .*; let the sites say most_weight in site\.toml"
    ):
        check_shares(policy.Policy(), config.parse(plan), "south", rows, 60)
    check_shares(policy.Policy(most_weight=1.0), config.parse(plan), "south", rows, 60)


def test_no_algorithm_sends_a_model_that_the_owner_does_not_see():
    """The first exchange of every one brings a model; later ones bring it too, or go on from it with a correction."""
    d = 3
    for name, record in algorithms.ALGORITHMS.items():
        algorithm = record.build_example(eq.tasks.ridge(d, 0.1), eq.objectives.kl(4, rho=0.1))
        x, like = jax.ShapeDtypeStruct((d,), np.float64), shard_like((d,), np.float64, (), np.float64)
        job = Job(algorithm, x, like)
        found = wire(algorithm, x, jax.eval_shape(algorithm.prepare, like))
        assert model_in(zeros(found[0].message), job) is not None, name
        for crossing in found:
            vectors = {k.rpartition(".")[2] for k, a in tensors.named(crossing.message) if a.shape == x.shape}
            assert vectors <= {"x", "w", "c"}, (name, crossing.exchange)
            assert bool(vectors & {"x", "w"}) == (model_in(zeros(crossing.message), job) is not None)


def zeros(shapes):
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)


@pytest.mark.thorough(witness="::test_no_algorithm_sends_a_model_that_the_owner_does_not_see")
def test_a_live_server_that_sends_such_a_model_is_refused(tmp_path):
    """In an honest run, the same message with another model: far away, or one that a single row stands out at."""
    here, data, homes, kept = config.parse(settings(run={"rounds": 1})), tmp_path / "silos", tmp_path / "homes", []
    silos.write(data, task="classification")
    home = homes / NORTH
    home.mkdir(parents=True)
    (home / policy.FILE).write_text(f"{DEFAULT}min_rows = 5\n")

    def fault(message, reply):
        at = message.content.get("at")
        if at is not None and at["exchange"] == "collect" and place.site(message) == NORTH:
            kept.append(message)
        return reply

    place = grid(here, data, homes, fault=fault)
    over = run_federation(here, tmp_path / "run", place)
    assert over.outcome.events == ()
    message = kept[0]
    (name,) = message.content["message"]
    honest = np.frombuffer(message.content["message"][name].data)

    def answered(x):
        array = Array(dtype="float64", shape=honest.shape, stype="equipoise.raw", data=np.asarray(x).tobytes())
        odd = Message(
            RecordDict({"at": message.content["at"], "message": ArrayRecord({name: array})}),
            message.metadata.dst_node_id,
            message.metadata.message_type,
        )
        odd.metadata.__dict__["_message_id"] = "1"
        return read_text(place.app(odd, place.contexts[message.metadata.dst_node_id]).content, "refused")

    assert "away from where it began" in answered(honest + 1e4)
    (home / policy.FILE).write_text(f"{DEFAULT}min_rows = 5\nmost_of_row = 0.01\n")
    assert "a single row would make" in answered(honest)
    assert audit.verify(home).entries[-1]["answer"] == "refused"


def test_a_run_that_concentrates_on_one_owner_stops_and_says_so(tmp_path):
    """With a rho this small the weights leave the range; after that the site answers nothing, until it is approved."""
    method = {"name": "scaffpd_sums", "steps": 3, "local_lr": 0.2, "rule": {"sigma": 200.0, "theta": 0.5}}
    plan = told(objective={"name": "kl", "rho": 0.002}, algorithm=method, federation={"secure": True, "tries": 1})
    here = config.parse(plan)
    data, homes = silos.write(tmp_path / "silos"), tmp_path / "homes"
    own = node(tmp_path)
    with pytest.raises(EquipoiseError):
        run_federation(here, tmp_path / "run", grid(here, data, homes, node=own))
    digest = policy.digest_of(here.toml())
    stopped = [site for site in SITES if digest in policy.stopped_here(homes / site)]
    assert stopped
    home = homes / stopped[0]
    why = [e["why"] for e in audit.verify(home).entries if e["answer"] == "refused"]
    assert any("own weight has left the range" in w for w in why)
    with pytest.raises(EquipoiseError, match="has stopped this run"):
        run_federation(here, tmp_path / "again", grid(here, data, homes, node=own))
    policy.approve(home, digest)
    assert digest not in policy.stopped_here(home)


def test_a_file_from_questions(tmp_path):
    """Strict answers where nobody is asked; an answer that is none is a sentence."""
    said = CliRunner().invoke(app, ["flower", "policy", "--site", str(tmp_path / "a"), "--yes"])
    assert said.exit_code == 0, said.output
    rules = policy.load(tmp_path / "a" / policy.FILE)
    assert (rules.ask, rules.min_rows, rules.min_count, rules.secure, rules.tells_losses) == (True, 20, 10, True, False)
    given = "no\nreadmitted\nage, ward\n30\n5\nno\n4\n3\n"
    said = CliRunner().invoke(app, ["flower", "policy", "--site", str(tmp_path / "b")], input=given)
    assert said.exit_code == 0, said.output
    rules = policy.load(tmp_path / "b" / policy.FILE)
    assert (rules.ask, rules.label, rules.columns) == (False, "readmitted", ("age", "ward"))
    assert (rules.min_rows, rules.least_cohort, rules.epsilon, rules.tells_losses) == (30, 4, 3.0, True)
    again = CliRunner().invoke(app, ["flower", "policy", "--site", str(tmp_path / "b")], input=given)
    assert "is there already" in " ".join(again.output.split())
    odd = CliRunner().invoke(app, ["flower", "policy", "--site", str(tmp_path / "c")], input="perhaps\n\n\n\n\n\n\n\n")
    assert "say yes or no" in " ".join(odd.output.split())
    assert not (tmp_path / "c" / policy.FILE).exists()


def test_the_least_number_of_rows_is_the_policy_s():
    """At it all is told; with one row less nothing is, of those to train on as of those to score with."""
    rules, told = policy.Policy(min_rows=5), config.parse(settings())
    check_rows(rules, told, "north", train=5, scored=5)
    with pytest.raises(Refusal, match="'north' would train on 4 rows"):
        check_rows(rules, told, "north", train=4, scored=5)
    with pytest.raises(Refusal, match="'north' has 4 rows to score a model with"):
        check_rows(rules, told, "north", train=5, scored=4)
