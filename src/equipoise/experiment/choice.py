"""What a run takes that names none: the algorithm, and why; how long; what owners keep and are judged by."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise import algorithms, objectives
from equipoise.algorithms import ALGORITHMS
from equipoise.extensions import is_reference

if TYPE_CHECKING:
    from equipoise.experiment.config import Config

BATCH = 32  # examples of a local step of a network, where nothing is said of algorithm and batch
NETWORKS = ("mlp", "cnn", "resnet", "gru")
PRICED = ("chi2", "kl")  # whose rho can be found by what fairness may cost
PRICE = 0.01  # of average skill
ROUNDS = 100  # at most, where a run ends by itself
BLIND_ROUNDS = 50  # of the network of [convexify], where no validation rows end it
CERTIFIED = 1e-3  # of the objective
WAITED = 10  # rounds that have brought nothing better


class Choice(NamedTuple):
    """An algorithm's name, and the reason in words."""

    name: str
    why: str


def best_algorithm(settings: Mapping[str, object]) -> Choice:
    """The algorithm for settings as they stand in a file, checked or not."""
    chosen, record = _for_exact_gradients(settings), ALGORITHMS["scaffpd_minibatch"]
    convexify, model, table = (settings.get(key) for key in ("convexify", "model", "algorithm"))
    last = model if convexify is None else convexify  # what [algorithm] trains
    batch = last.get("batch") if isinstance(last, Mapping) else None
    own = {key for key, value in (table.items() if isinstance(table, Mapping) else ()) if value is not None}
    taken = {argument.name for argument in record.settings} | {"name", "rule", "server_optimizer", "schedule"}
    network = isinstance(model, Mapping) and model.get("name", "linear") not in ("linear", "torch") and last is model
    if chosen.name != "scaffpd" or (batch is None and not network) or own - taken:
        return chosen
    return Choice(record.name, f"{chosen.why}, and with minibatches its control variates are means of local gradients")


def _given(settings: Mapping[str, object], section: str, key: str, default: object = None) -> Any:
    table = settings.get(section)
    return table.get(key, default) if isinstance(table, Mapping) else default


def _for_exact_gradients(settings: Mapping[str, object]) -> Choice:
    given = partial(_given, settings)
    table = settings.get("algorithm")
    own = {key for key, value in (table.items() if isinstance(table, Mapping) else ()) if value is not None}
    record = ALGORITHMS["scaffpd_model"]
    foreign = sorted(own - {argument.name for argument in record.settings} - {"name", "cohort", "coin"})
    objective, model = given("objective", "name", "chi2"), given("model", "name", "linear")
    if given("federation", "secure") is True and (masked := _for_masks(objective, own)) is not None:
        return masked
    if foreign:
        return Choice("scaffpd", f"{', '.join(foreign)} is given, which SCAFF-PD with a model does not need")
    if model != "linear" and settings.get("convexify") is None:
        return Choice("scaffpd", f"a {model} is not convex, which SCAFF-PD with a model counts on")
    if is_reference(objective):
        return Choice(
            "scaffpd",
            f"'{objective}' is code of your own; algorithm.name = 'scaffpd_model' takes it too where its penalty is "
            "smooth, and needs fewer rounds",
        )
    if not _on_simplex(objective):
        return Choice("scaffpd", f"the weights of '{objective}' need not be shares, which SCAFF-PD with a model needs")
    if given("federation", "clip") is not None or given("federation", "clip_gradients") is not None:
        return Choice(
            "scaffpd",
            "losses and gradients that are clipped do not fit each other, which SCAFF-PD with a model compares",
        )
    few = given("algorithm", "cohort") is not None
    how = "a few clients in a round are enough for it, " if few else ""
    return Choice("scaffpd_model", f"the model is linear, {how}it has nothing to tune and needs the fewest rounds")


def _for_masks(objective: Any, own: set[str]) -> Choice | None:
    """Of what needs sums, which masks hide; None: the settings are of something else."""
    form = {"kl": "scaffpd_sums", "average": "scaffold"}.get(objective, "scaffpd_secure")
    taken = {"name", "rule", *(argument.name for argument in ALGORITHMS[form].settings)}
    if own - taken or (form == "scaffpd_secure" and not _on_simplex(objective)):
        return None
    whole = "federation.secure masks sums, and it sends the server nothing else of a site"
    part = (
        f"federation.secure masks sums, and for '{objective}' it sends the server each site's loss beside them; set "
        "objective.name = 'kl', for which scaffpd_sums sends nothing but sums"
    )
    return Choice(form, part if form == "scaffpd_secure" else whole)


def _on_simplex(objective: object) -> bool:
    """Whether its weights are shares; a name that is not an objective is found elsewhere."""
    if is_reference(objective):
        return False
    record = objectives.DUALS.get(objective) if isinstance(objective, str) else None
    return record is None or record(2, **record.example).simplex


def how_long(settings: Mapping[str, Any]) -> dict[str, Any]:
    """[run] for `run.rounds = "auto"`, of settings as they stand in a file, with the algorithm's name.

    A run that can be certified ends when it is; another one when validation rows say that nothing gets better, and
    where nobody may look at those, or noise is made for a number of rounds, after that number.
    """
    given = partial(_given, settings)
    run = dict(settings.get("run") or {}) | {"rounds": ROUNDS}
    last = "model" if settings.get("convexify") is None else "convexify"
    convex = last == "convexify" or given("model", "name", "linear") == "linear"
    curved = given(last, "l2", 1.0) != 0 and given("model", "l2_intercept", 1.0) != 0
    record = ALGORITHMS.get(given("algorithm", "name"))
    certain = convex and curved and settings.get("privacy") is None
    if certain and record is not None and record.takes_dual:
        return {"until_gap": CERTIFIED, **run}
    unseen = any(settings.get(section) is not None for section in ("federation", "privacy"))
    unseen = unseen or given("data", "unit") is not None or given("data", "name") == "quadratics"
    chosen = {"keep_best": True, "keep_by": "loss", "patience": WAITED}
    return run if unseen or not run.get("keep_best", True) else {**chosen, **run}


def tried_out(config: "Config") -> list[str]:
    """What is left to trial rounds of the work of a round, see `chosen/effort.py`."""
    given = {
        "algorithm.steps": getattr(config.algorithm, "steps", None),
        "model.batch": config.model.batch,
        "algorithm.cohort": config.algorithm.cohort,
    }
    return [key for key, value in given.items() if value == "auto"]


def network_rounds(config: "Config") -> dict[str, Any]:
    """[run] of the first stage of [convexify] with `rounds = "auto"`: it ends by validation rows, where it may."""
    blind = config.federation is not None or config.privacy is not None or config.data.unit is not None
    if blind or config.model.name == "torch":
        return {"rounds": BLIND_ROUNDS}
    return {"rounds": ROUNDS, "keep_best": True, "keep_by": "loss", "patience": WAITED}


def left_open(settings: Mapping[str, object]) -> dict[str, Any]:
    """With to be chosen what nothing is said of: of owners that exist the penalty and the price of fairness, of a
    network whether it is made convex.
    """

    def table(section: str) -> Mapping[str, Any]:
        given = settings.get(section)
        return given if isinstance(given, Mapping) else {}

    data, model, objective = table("data"), table("model"), table("objective")
    owners = data.get("silos") is not None or table("partition").get("kind") == "natural"
    others = any(settings.get(section) is not None for section in ("convexify", "privacy", "federation"))
    opened, name = dict(settings), model.get("name", "linear")
    if not others and name in NETWORKS:
        opened["model"] = {"convexified": "auto", **model}
    if not owners or others or name != "linear" or data.get("name") in ("quadratics", "synthetic"):
        return opened
    if isinstance(settings.get("model", {}), Mapping):
        opened["model"] = {"l2": "auto", **model}
    method = ALGORITHMS.get(table("algorithm").get("name", "scaffpd_model"))
    robust = method is not None and method.takes_dual and objective.get("name", "chi2") in PRICED
    if robust and isinstance(settings.get("objective", {}), Mapping) and not {"rho", "price"} & objective.keys():
        opened["objective"] = {**objective, "price": PRICE}
    return opened


def settled(config: "Config") -> "Config":
    """With `model.own` and `objective.of` decided where they are "auto".

    Owners that exist differ in how common a class is and in how hard their labels are to predict: each has an intercept
    of its own, and counts by what it loses against a model of its own. Divisions of an experiment have no owners.
    """
    exist = config.data.silos is not None or config.federation is not None or config.partition.kind == "natural"
    # Of modules that are not JAX's nothing can be fitted; noise is counted for plain losses.
    exist = exist and config.privacy is None and config.model.name != "torch" and config.data.name != "quadratics"
    trained_for = algorithms.named(config.algorithm.name).takes_dual
    robust = trained_for and config.objective.name != "average" and _on_simplex(config.objective.name)
    return config.model_copy(
        update={
            "model": _decided(config.model, "own", "intercept" if exist else "none"),
            "objective": _decided(config.objective, "of", "gains" if exist and robust else "losses"),
        }
    )


def offers(config: "Config") -> bool:
    """Whether owners are told what each should use, where nothing is said: their rows are here, and fits are quick."""
    exist = config.data.silos is not None or (config.partition.kind == "natural" and config.data.name != "quadratics")
    linear = config.model.name == "linear" and config.convexify is None
    return exist and linear and config.federation is None and config.privacy is None


def _decided(section: Any, key: str, value: str) -> Any:
    return section.model_copy(update={key: value}) if getattr(section, key) == "auto" else section
