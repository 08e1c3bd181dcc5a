"""Settings that are fine by themselves and do not fit each other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from equipoise.algorithms import ALGORITHMS, named
from equipoise.experiment import choice, mistakes

if TYPE_CHECKING:
    from equipoise.experiment.config import Config, ConvexifySettings, FederationSettings, PersonalSettings


def contradictions(config: "Config") -> Iterator[str]:
    """What no single key can know: a sentence for each that does not fit another."""
    federation, convexify, privacy = config.federation, config.convexify, config.privacy
    yield from _of_rows(config)
    yield from _of_model(config)
    if federation is not None:
        yield from _of_federation(config, federation)
    if config.objective.of == "gains":
        if not _by_jax(config):
            yield "objective.of is 'gains', which needs rows that JAX can fit an own model to; give 'losses'"
        if privacy is not None:
            yield "objective.of is 'gains': every owner tells a loss of its rows, which no noise covers; give 'losses'"
    if convexify is not None:
        yield from _of_convexify(config, convexify)
    if config.run.patience is not None and not config.run.keep_best:
        yield "run.patience waits for a better model, which only run.keep_best looks for; set it to true"
    if config.run.keep_best and (federation is not None or privacy is not None):
        given = "run.keep_best looks at validation rows on this machine, without noise"
        yield f"{given}; leave it out with [federation] and [privacy]"
    if privacy is not None:
        yield from _of_privacy(config)
    if config.model.l2 == "auto" or config.objective_price is not None:
        yield from _of_folds(config, "model.l2 is 'auto'" if config.model.l2 == "auto" else "objective.price is given")
    yield from _of_trials(config)
    if config.own_models is not None:
        yield from _of_personal(config, config.own_models)


def _by_jax(config: "Config") -> bool:
    """Whether the model is one that JAX trains on rows."""
    return config.model.name != "torch" and config.data.name != "quadratics"


def _of_rows(config: "Config") -> Iterator[str]:
    files, n, algorithm = config.data.silos is not None, config.partition.clients, config.algorithm
    if files and config.partition != type(config.partition)():
        yield "silo files are divided already; leave out [partition], or data.silos"
    if config.data.unit is not None and ((not files and config.federation is None) or config.model.name == "torch"):
        given = "data.unit is a column of owners' tables; give data.silos or [federation]"
        yield f"{given}, or leave it out: data sets and PyTorch modules, which have rows of their own, do not have it"
    if config.data.unit is not None and config.run.keep_best:
        yield "run.keep_best sets rows aside one by one, not by data.unit; leave out one of them"
    if config.data.name == "synthetic" and config.partition.kind == "natural":
        yield "synthetic data has no natural owners; leave out partition.kind"
    if algorithm.cohort is not None and algorithm.coin is not None:
        yield "algorithm.cohort and algorithm.coin both say who takes part; give one of them"
    divided = files or config.data.name == "synthetic" or config.partition.kind == "natural"
    if not divided and isinstance(algorithm.cohort, int) and algorithm.cohort > n:
        yield f"algorithm.cohort is {algorithm.cohort} of {n} clients; give at most {n}"


def _of_model(config: "Config") -> Iterator[str]:
    model, federation, convexify = config.model, config.federation, config.convexify
    if model.name == "torch" and (federation is None or config.data.silos is not None):
        given = "model.name is 'torch', a module at each site of a federation"
        yield f"{given}; train it with `equipoise flower local` or `equipoise flower server`"
    trains, section = (config.algorithm, "") if convexify is None else (convexify.algorithm, "convexify.")
    if model.name == "torch" and trains.optimizer is not None:
        yield f"{section}algorithm.optimizer is of optax, and a PyTorch module takes its own steps; leave it out"
    if model.l2_intercept is not None and (model.name != "linear" or model.loss == "squared"):
        given = "model.l2_intercept is for linear models with an intercept"
        yield f"{given}, which networks and model.loss = 'squared' do not have; leave it out"
    if model.own != "none":
        if not _by_jax(config):
            yield "model.own is for models that JAX trains on rows; leave it out with PyTorch modules and quadratics"
        if config.privacy is not None:
            given = "[privacy] counts releases of single rows' losses, and an own part joins them"
            yield f"{given}; give model.own = 'none'"
        if not isinstance(model.own, str) and convexify is not None:
            yield "model.own names columns, of which [convexify] makes features; give 'intercept'"
    if model.metric not in ("auto", "none"):
        given = f"model.metric is {model.metric!r}"
        if model.name != "linear" and convexify is None:
            yield f"{given}, which is for models that are linear in their inputs, unlike a {model.name}; leave it out"
        if convexify is not None and convexify.kind == "linearised":
            yield f"{given}, but convexify.kind 'linearised' has no features that it could be of; give 'sketch'"
        if config.privacy is not None:
            yield f"{given}: it is made of sums over all rows, which no noise of [privacy] covers; give 'none'"
    others = any((convexify, federation, config.privacy))
    if model.convexified == "auto" and (model.name not in choice.NETWORKS or others):
        given = "model.convexified is 'auto', which tries [convexify] on a network whose rows are at hand"
        yield f"{given}; leave it out of other models, and where [convexify], [privacy] or [federation] is given"


def _of_folds(config: "Config", given: str) -> Iterator[str]:
    if config.federation is not None and config.federation.secure:
        hidden = f"{given}, which is found by losses and gradients of single sites, and federation.secure hides them"
        yield f"{hidden}; give numbers, such as model.l2 = 0.01 and objective.rho = 0.1"
    if config.model.name != "linear" or config.convexify is not None:
        yield f"{given}, which is found by folds for linear models only; give numbers, such as model.l2 = 0.0001"
    if config.privacy is not None:
        yield f"{given}, which is found by models of folds, which no noise of [privacy] covers; give numbers"
    if config.data.name in ("quadratics", "synthetic") and config.data.silos is None:
        yield f"{given}, which is found by folds of examples, and {config.data.name} data has none; give numbers"


def _of_trials(config: "Config") -> Iterator[str]:
    for key in choice.tried_out(config):
        if config.federation is not None:
            yield f"{key} is 'auto', which trial rounds find where all rows are at hand; over Flower give a number"
        if config.convexify is not None:
            yield f"{key} is 'auto', which is for one training, and [convexify] has two; give a number"
        if config.privacy is not None:
            yield f"{key} is 'auto', which trial rounds find, and no noise of [privacy] covers them; give a number"
    stage = None if config.convexify is None else config.convexify.algorithm
    if "auto" in (getattr(stage, "steps", None), getattr(stage, "cohort", None)):
        yield "convexify.algorithm has steps or cohort 'auto', which is for [algorithm] alone; give numbers"


def _of_federation(config: "Config", settings: "FederationSettings") -> Iterator[str]:
    sites, algorithm = settings.sites, config.algorithm
    if not isinstance(sites, int) and not (all(sites) and len(set(sites)) == len(sites) > 0):
        yield f"federation.sites is {mistakes.shown(sites)}; give the sites' names, each once, or their number"
    count = sites if isinstance(sites, int) else len(sites)
    if settings.secure and count < 3:
        yield f"federation.secure hides a site among others, which takes 3 sites at least, not {count}"
    if settings.compress_sums and settings.compress is None:
        yield "federation.compress_sums is true but federation.compress names no type; give 'float32' or 'bfloat16'"
    if settings.secure and settings.project:
        yield "federation.project looks at every site's update, which federation.secure hides; leave one of them out"
    if settings.secure and settings.compress_sums:
        yield "federation.compress_sums shows every site's sums, which federation.secure hides; leave one of them out"
    sampled = algorithm.cohort is not None or algorithm.coin is not None
    if settings.project and (not named(algorithm.name).corrected or sampled or config.batch is not None):
        yield "federation.project is for scaffpd with everybody in every round and without minibatches; leave it out"


def _of_convexify(config: "Config", settings: "ConvexifySettings") -> Iterator[str]:
    module = config.model.name == "torch"
    if config.privacy is not None:
        given = "[privacy] counts the releases of one training"
        yield f"{given}, and [convexify] has two and sums of features, which no noise covers; leave one of them out"
    if module and settings.last is None:
        yield "only its sites know the last layer of their PyTorch module; name it: convexify.last = 'fc'"
    if not module and settings.last is not None:
        given = "convexify.last names a layer of a PyTorch module"
        yield f"{given}, and this is a {config.model.name}, whose last layer is known; leave it out"
    if module and settings.kind == "linearised":
        yield "convexify.kind is 'linearised', which is for networks of JAX; give 'sketch', 'coordinates' or 'last'"


def _of_privacy(config: "Config") -> Iterator[str]:
    """What is accounted for exactly: whole gradients, and nothing that is measured without noise."""
    algorithm = config.algorithm
    record = named(algorithm.name)
    if record.releases is None:
        counted = " and ".join(name for name, one in ALGORITHMS.items() if one.releases is not None)
        yield f"[privacy] is for {counted}, not for {algorithm.name}; give one of them, or leave it out"
    if config.model.batch is not None or config.model.name == "torch":
        yield "[privacy] counts releases of all rows, by JAX; leave out model.batch and PyTorch modules"
    if record.corrected and (algorithm.cohort is not None or algorithm.coin is not None):
        yield f"[privacy] with {record.name} asks everybody in every round; leave out algorithm.cohort, algorithm.coin"
    for key in ("optimizer", "server_optimizer", "schedule"):
        if getattr(algorithm, key) is not None:
            yield f"[privacy] is accounted for plain steps of one size; leave out algorithm.{key}"
    measured = [f"algorithm.{k}" for k in ("local_lr", "rule") if getattr(algorithm, k, None) in ("auto", "tuned")]
    measured += ["personal.lr"] if config.own_models is not None and config.own_models.lr == "auto" else []
    for key in measured:
        yield f"{key} would be measured on the rows, without noise; give numbers"


def _of_personal(config: "Config", settings: "PersonalSettings") -> Iterator[str]:
    if config.federation is not None and config.federation.secure:
        yield "[personal] tells each site's scores with both models, which federation.secure hides; leave one out"
    if not _by_jax(config):
        yield "[personal] is for models that JAX trains on rows; leave it out with PyTorch modules and quadratics"
    if config.convexify is not None:
        yield "[personal] is for the model that is trained, of which [convexify] makes another; leave one of them out"
    if settings.kind == "moreau" and config.privacy is not None:
        yield "[privacy] counts releases of plain losses, and personal.kind is 'moreau'; give 'fine_tuning' instead"
    if settings.kind == "best" and config.model.name != "linear":
        yield f"personal.kind is 'best', folds of linear models, and this is a {config.model.name}; give 'fine_tuning'"
    if settings.kind == "best" and config.privacy is not None:
        yield "[privacy] covers no scores of models of the owners' own rows; give personal.kind = 'fine_tuning'"
    if settings.kind != "best" and settings.lr == "auto" and config.model.name != "linear":
        given = "personal.lr is 'auto', which is measured for linear models only"
        yield f"{given}, and this is a {config.model.name}; give a number"
