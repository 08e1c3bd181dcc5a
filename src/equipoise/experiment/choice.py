"""What a run takes that names none: the algorithm, and why; how long; what owners keep and are judged by."""

from collections.abc import Mapping
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
OTHERS = ("convexify", "privacy")  # sections of runs of which nothing is left open
ROUNDS = 100  # at most, where a run ends by itself
BLIND_ROUNDS = 50  # of the network of [convexify], where no validation rows end it
CERTIFIED = 1e-3  # of the objective
WAITED = 10  # rounds that have brought nothing better


class Advised(NamedTuple):
    """An algorithm's name, and the reason in words."""

    name: str
    why: str


def _table(settings: Mapping[str, object], section: str) -> Mapping[str, Any]:
    """A section; empty where it is not there, or is a mistake that is found elsewhere."""
    table = settings.get(section)
    return table if isinstance(table, Mapping) else {}


def best_algorithm(settings: Mapping[str, object]) -> Advised:
    """The algorithm for settings as they stand in a file, checked or not."""
    set_here = {key for key, value in _table(settings, "algorithm").items() if value is not None}
    name, why = _for_exact_gradients(settings, set_here)
    record, whole = ALGORITHMS["scaffpd_minibatch"], settings.get("convexify") is None
    batch = _table(settings, "model" if whole else "convexify").get("batch")  # of what [algorithm] trains
    network = whole and _table(settings, "model").get("name", "linear") not in ("linear", "torch")
    taken = {argument.name for argument in record.settings} | {"name", "rule", "server_optimizer", "schedule"}
    if name != "scaffpd" or (batch is None and not network) or set_here - taken:
        return Advised(name, why)
    return Advised(record.name, f"{why}, and with minibatches its control variates are means of local gradients")


def _for_exact_gradients(settings: Mapping[str, object], set_here: set[str]) -> Advised:
    federation, objective = _table(settings, "federation"), _table(settings, "objective").get("name", "chi2")
    model = _table(settings, "model").get("name", "linear")
    arguments = {argument.name for argument in ALGORITHMS["scaffpd_model"].settings}
    foreign = sorted(set_here - arguments - {"name", "cohort", "coin"})
    if federation.get("secure") is True and (masked := _for_masks(objective, set_here)) is not None:
        return masked
    if foreign:
        why = f"{', '.join(foreign)} is given, which SCAFF-PD with a model does not need"
    elif model != "linear" and settings.get("convexify") is None:
        why = f"a {model} is not convex, which SCAFF-PD with a model counts on"
    elif is_reference(objective):
        why = (
            f"'{objective}' is code of your own; algorithm.name = 'scaffpd_model' takes it too where its penalty is "
            "smooth, and needs fewer rounds"
        )
    elif not _on_simplex(objective):
        why = f"the weights of '{objective}' need not be shares, which SCAFF-PD with a model needs"
    elif federation.get("clip") is not None or federation.get("clip_gradients") is not None:
        why = "losses and gradients that are clipped do not fit each other, which SCAFF-PD with a model compares"
    else:
        few = "a few clients in a round are enough for it, " if "cohort" in set_here else ""
        return Advised("scaffpd_model", f"the model is linear, {few}it has nothing to tune and needs the fewest rounds")
    return Advised("scaffpd", why)


def _for_masks(objective: Any, set_here: set[str]) -> Advised | None:
    """Of what needs sums, which masks hide; None: the settings are of something else."""
    form = {"kl": "scaffpd_sums", "average": "scaffold"}.get(objective, "scaffpd_secure")
    taken = {"name", "rule", *(argument.name for argument in ALGORITHMS[form].settings)}
    if set_here - taken or (form == "scaffpd_secure" and not _on_simplex(objective)):
        return None
    if form != "scaffpd_secure":
        return Advised(form, "federation.secure masks sums, and it sends the server nothing else of a site")
    why = (
        f"federation.secure masks sums, and for '{objective}' it sends the server each site's loss beside them; set "
        "objective.name = 'kl', for which scaffpd_sums sends nothing but sums"
    )
    return Advised(form, why)


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
    run = dict(settings.get("run") or {}) | {"rounds": ROUNDS}
    model, data = _table(settings, "model"), _table(settings, "data")
    convexify = settings.get("convexify") is not None
    convex = convexify or model.get("name", "linear") == "linear"
    l2 = _table(settings, "convexify" if convexify else "model").get("l2", 1.0)
    record = ALGORITHMS.get(_table(settings, "algorithm").get("name", ""))
    certain = convex and l2 != 0 and model.get("l2_intercept", 1.0) != 0 and settings.get("privacy") is None
    if certain and record is not None and record.takes_dual:
        return {"until_gap": CERTIFIED, **run}
    unseen = any(settings.get(section) is not None for section in ("federation", "privacy"))
    unseen = unseen or data.get("unit") is not None or data.get("name") == "quadratics"
    chosen = {"keep_best": True, "keep_by": "loss", "patience": WAITED}
    return run if unseen or not run.get("keep_best", True) else {**chosen, **run}


def tried_out(config: "Config") -> list[str]:
    """What is left to trial rounds of the work of a round, see `chosen/effort.py`."""
    steps, batch = getattr(config.algorithm, "steps", None), config.model.batch
    given = {"algorithm.steps": steps, "model.batch": batch, "algorithm.cohort": config.algorithm.cohort}
    return [key for key, value in given.items() if value == "auto"]


def network_rounds(config: "Config") -> dict[str, Any]:
    """[run] of the first stage of [convexify] with `rounds = "auto"`: it ends by validation rows, where it may."""
    blind = config.federation is not None or config.privacy is not None or config.data.unit is not None
    if blind or config.model.name == "torch":
        return {"rounds": BLIND_ROUNDS}
    return {"rounds": ROUNDS, "keep_best": True, "keep_by": "loss", "patience": WAITED}


def left_open(settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings, with "auto" where nothing is said: of owners that exist the penalty and the price of fairness, of a
    network whether it is made convex.

    Not of owners whose sums are masked, or whose rows are covered by noise: those keep the numbers that are fixed.
    """
    data, model, objective = (_table(settings, section) for section in ("data", "model", "objective"))
    apart, others = settings.get("federation") is not None, any(settings.get(s) is not None for s in OTHERS)
    owners = apart or data.get("silos") is not None or _table(settings, "partition").get("kind") == "natural"
    opened, name = dict(settings), model.get("name", "linear")
    if not others and not apart and name in NETWORKS:
        opened["model"] = {"convexified": "auto", **model}
    made_up = not apart and data.get("name") in ("quadratics", "synthetic")
    masked = _table(settings, "federation").get("secure") is True
    if not owners or others or masked or name != "linear" or made_up:
        return opened
    if isinstance(settings.get("model", {}), Mapping):
        opened["model"] = {"l2": "auto", **model}
    method = ALGORITHMS.get(_table(settings, "algorithm").get("name", "scaffpd_model"))
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
