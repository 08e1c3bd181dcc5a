"""From a folder of files to predictions in another process, and what can be wrong with a saved model."""

import json
import os
import subprocess
import sys
from io import StringIO

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import safetensors.numpy
from jax.flatten_util import ravel_pytree

from equipoise import artifact, models
from equipoise.data.silos import SiloWarning, read
from equipoise.errors import InputError

KEY = jax.random.key(0)


def trained(federation, model, loss, steps=200, lr=0.5):
    """Plain gradient descent on the mean over all silos' examples."""
    train = federation.train
    real = jnp.arange(train.labels.shape[1], dtype=train.sizes.dtype)[None] < train.sizes[:, None]

    def mean_loss(params):
        each = jax.vmap(lambda a, b: loss(model.apply(params, a), b))(train.inputs, train.labels)
        return jnp.mean(each, where=real)

    def step(params, _):
        return jax.tree.map(lambda p, g: p - lr * g, params, jax.grad(mean_loss)(params)), None

    return jax.jit(lambda p: jax.lax.scan(step, p, None, length=steps)[0])(jax.jit(model.init)(KEY))


def hospitals(folder, n=80):
    """Three hospitals: mixed columns, missing cells, other categories in each, another file format in one."""
    rng = np.random.default_rng(0)
    for i, (name, wards) in enumerate({"north": "AB", "south": "BC", "west": "CD"}.items()):
        age, dose = rng.normal(50 + 5 * i, 15, n), 1e9 + rng.normal(0, 1, n)
        ward, sex = rng.choice(list(wards), n), rng.choice(["F", "M"], n)
        ill = (age - 55) / 15 + 2 * (ward == "C") + (dose - 1e9) + rng.normal(0, 0.3, n) > 0.5
        frame = pl.DataFrame(
            {
                "age": age.round(1), "dose": dose, "ward": ward, "sex": sex, "country": "NO",
                "admitted": [f"2024-{1 + j % 12:02}-{1 + j % 28:02}" for j in range(n)],
                "ill": np.where(ill, "yes", "no"),
            }
        ).with_columns(
            age=pl.when(pl.Series(rng.random(n) < 0.1)).then(None).otherwise(pl.col("age")),
            sex=pl.when(pl.Series(rng.random(n) < 0.1)).then(None).otherwise(pl.col("sex")),
        )  # fmt: skip
        if name == "west":
            frame.with_columns(pl.col("admitted").str.to_date()).write_parquet(folder / "west.parquet")
        else:
            frame.write_csv(folder / f"{name}.csv", null_value="NA")


def in_a_fresh_process(model_file, rows_file):
    code = "import sys; from equipoise import artifact as a; print(a.predict(*sys.argv[1:]).write_csv(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(model_file), str(rows_file)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return pl.read_csv(StringIO(done.stdout))


def test_from_files_to_predictions_in_another_process(tmp_path):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    hospitals(folder)
    with pytest.warns(SiloWarning, match="column 'country' dropped"):
        federation = read(folder, "ill", seed=3)
    assert federation.test is not None
    model = models.linear(federation.encoding.shape[0], federation.encoding.outputs)
    params = trained(federation, model, models.cross_entropy)
    outputs = jax.vmap(lambda inputs: model.apply(params, inputs))(federation.test.inputs)
    right = np.asarray(outputs).argmax(2) == np.asarray(federation.test.labels)
    assert right.mean() > 0.85

    file = tmp_path / "ill.safetensors"
    x, _ = ravel_pytree(params)
    artifact.save(file, x, model, federation.encoding, loss="cross_entropy", metadata={"silos": federation.names})
    new = tmp_path / "new.csv"
    new.write_text(
        "ward,age,sex,dose,admitted,remark\n"
        "C,90,F,1000000001,2024-05-05,\n"
        "A,20,M,999999999,2024-05-05,\n"
        "never seen,?,,1000000000,,all but nothing known\n"
    )
    predictions = in_a_fresh_process(file, new)
    assert predictions.columns == ["prediction", "probability of no", "probability of yes"]
    assert predictions["prediction"].to_list()[:2] == ["yes", "no"]
    here = artifact.predict(file, new)
    assert here["prediction"].to_list() == predictions["prediction"].to_list()
    np.testing.assert_allclose(
        here.select(pl.selectors.numeric()), predictions.select(pl.selectors.numeric()), atol=1e-5
    )
    np.testing.assert_allclose(here["probability of no"] + here["probability of yes"], 1)
    assert artifact.load(file).metadata == {"silos": ["north", "south", "west"]}


def test_regression_and_npz(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        x = rng.normal(i, 1, size=(40, 2))
        np.savez(folder / f"{i}.npz", inputs=x, labels=1e5 + 1e4 * x[:, 0] - 2e4 * x[:, 1])
    federation = read(folder, "price")
    model = models.linear(2, 1)
    params = trained(federation, model, models.squared_error, lr=0.2)
    artifact.save(tmp_path / "m", params, model, federation.encoding, loss="squared_error")
    np.savez(tmp_path / "new.npz", inputs=np.array([[1.0, 1.0], [0.0, np.nan]]))
    predictions = artifact.predict(tmp_path / "m", tmp_path / "new.npz")
    assert predictions.columns == ["prediction"]
    assert predictions["prediction"][0] == pytest.approx(9e4, rel=1e-3)


def test_images_and_their_classes(tmp_path):
    images = np.zeros((2, 12, 8, 8), np.uint8)
    labels = np.arange(12) % 2
    images[:, labels == 1, 2:6] = 255
    for i, name in enumerate("ab"):
        np.savez(tmp_path / f"{name}.npz", inputs=images[i], labels=labels + 3)
    federation = read(tmp_path)
    model = models.cnn(federation.encoding.shape, federation.encoding.outputs)
    params = trained(federation, model, models.cross_entropy, steps=30, lr=0.1)
    artifact.save(tmp_path / "m.safetensors", params, model, federation.encoding, loss="cross_entropy")
    predictions = artifact.predict(tmp_path / "m.safetensors", tmp_path / "a.npz")
    assert predictions["prediction"].to_list() == (labels + 3).tolist()


@pytest.fixture
def saved(tmp_path):
    model = models.mlp(3, [4], 2)
    params = jax.jit(model.init)(KEY)
    path = tmp_path / "model.safetensors"
    artifact.save(path, params, model, metadata={"rounds": 5})
    return path, model, params


def test_tree_and_vector_are_saved_alike(saved, tmp_path):
    path, model, params = saved
    artifact.save(tmp_path / "vector", ravel_pytree(params)[0], model, metadata={"rounds": 5})
    assert (tmp_path / "vector").read_bytes() == path.read_bytes()
    loaded = artifact.load(path)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    assert (loaded.model.name, loaded.metadata, loaded.encoding) == ("mlp", {"rounds": 5}, None)
    assert loaded.outputs(np.ones((5000, 3))).shape == (5000, 2)
    with pytest.raises(InputError, match="saved without an encoding"):
        loaded.predict(pl.DataFrame({"x": [1]}))


def test_a_model_of_ones_own(tmp_path):
    mine = models.Model(lambda key: {"w": jnp.ones((2, 1))}, lambda p, a: a @ p["w"], "mine")
    artifact.save(tmp_path / "m", mine.init(KEY), mine)
    with pytest.raises(InputError, match="there is no model 'mine'"):
        artifact.load(tmp_path / "m")
    assert artifact.load(tmp_path / "m", mine).params["w"].shape == (2, 1)
    with pytest.raises(InputError, match=r"has nothing for the weights 'weight'; the model needs \(1, 2\)"):
        artifact.load(tmp_path / "m", models.linear(2, 1))


def test_what_cannot_be_saved(saved, tmp_path):
    path, model, params = saved
    before = path.read_bytes()
    for bad, sentence in (
        (jnp.zeros(7), "a vector of its 26 parameters"),
        (params[:1], "give what its `init` makes"),
        (jax.tree.map(lambda a: a * jnp.nan, params), "hold NaN or infinity"),
    ):
        with pytest.raises(InputError, match=sentence):
            artifact.save(path, bad, model)
    with pytest.raises(InputError, match="cannot be written as JSON"):
        artifact.save(path, params, model, metadata={"when": object()})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_crash_while_writing_leaves_the_old_file(saved, monkeypatch):
    path, model, params = saved
    before = path.read_bytes()

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        artifact.save(path, jax.tree.map(jnp.zeros_like, params), model)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_model_and_encoding_have_to_fit(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,y\n1,2,p\n2,5,q\n3,1,p\n")
    encoding = read(tmp_path, "y").encoding
    for wrong in (models.linear(3, 2), models.linear(2, 3)):
        with pytest.raises(
            InputError, match="makes 2 inputs and needs 2 outputs per row; the model 'linear' does not fit"
        ):
            artifact.save(tmp_path / "m", wrong.init(KEY), wrong, encoding)


def test_what_cannot_be_loaded(saved, tmp_path):
    path, *_ = saved
    with pytest.raises(InputError, match="there is no file"):
        artifact.load(tmp_path / "nowhere")
    other = tmp_path / "other"
    for content in (b"", b"no tensors here", path.read_bytes()[:60], path.read_bytes()[:-9]):
        other.write_bytes(content)
        with pytest.raises(InputError, match="other is not a model that equipoise saved"):
            artifact.load(other)
    weights = {"w": np.zeros(2)}
    other.write_bytes(safetensors.numpy.save(weights))
    with pytest.raises(InputError, match="was not written by equipoise"):
        artifact.load(other)
    header = {
        "version": 1,
        "model": {"name": "linear", "arguments": {"wide": 3}},
        "encoding": None,
        "loss": "",
        "metadata": {},
    }
    for wrong in ({"version": 1}, [], header):
        other.write_bytes(safetensors.numpy.save(weights, {"equipoise": json.dumps(wrong)}))
        with pytest.raises(InputError, match="not a model that equipoise saved"):
            artifact.load(other)
    other.write_bytes(safetensors.numpy.save(weights, {"equipoise": json.dumps({**header, "version": 3})}))
    with pytest.raises(InputError, match="is of version 3"):
        artifact.load(other)
    with safetensors.safe_open(path, framework="numpy") as file:
        broken = {name: np.full_like(file.get_tensor(name), np.nan) for name in file.keys()}  # noqa: SIM118
        other.write_bytes(safetensors.numpy.save(broken, file.metadata()))
    with pytest.raises(InputError, match="hold what is not a finite number"):
        artifact.load(other)


def test_a_task_is_no_model_to_save(tmp_path):
    from equipoise import tasks

    with pytest.raises(InputError, match=r"the model is a Task; give one of equipoise.models"):
        artifact.save(tmp_path / "model.safetensors", np.zeros(3), tasks.ridge(3))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
