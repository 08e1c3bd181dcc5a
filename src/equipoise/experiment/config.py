"""A run, described in TOML: [data] [partition] [model] [convexify] [objective] [algorithm] [run].

The settings of an algorithm or objective are the arguments of its own function, so a new one can be configured as
soon as it is listed. [compare.LABEL] and [sweep] make several runs of one file, see `plan.py`.
"""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args

import pydantic
import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.errors import PydanticSchemaGenerationError

from equipoise import algorithms, objectives
from equipoise.algorithms import ALGORITHMS
from equipoise.data.silos import SEPARATOR, Options, is_separator
from equipoise.data.silos.statistics import MISSING
from equipoise.errors import InputError, nearest, require
from equipoise.experiment import choice, mistakes
from equipoise.experiment.contradictions import contradictions
from equipoise.extensions import is_reference, load

Auto = Literal["auto"]
# JAX makes a key of the last 32 bits of a seed: two seeds that differ beyond them would give the same numbers.
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Count = Annotated[int, Field(ge=1, lt=2**31)]  # rounds and clients are counted in 32 bits
AtLeastOne = Annotated[int, Field(ge=1)]
DateOrder = Literal["auto", "day-first", "month-first"]
Division = Literal["iid", "dirichlet", "similarity", "k_classes", "one_class", "quantity", "natural"]
# As `steps.tuned`; older files say "auto".
Tuned = Annotated[Literal["tuned"], BeforeValidator(lambda value: "tuned" if value == "auto" else value)]


class Section(BaseModel):
    """Settings that belong together; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(Section):
    """Whose data: a set of `equipoise data list`, or a folder with a file per owner."""

    name: str = Field("digits", description="a data set of `equipoise data list`, 'synthetic', or a .npz of features")
    silos: str | None = Field(None, description="a folder with one .csv, .parquet or .npz file per owner, instead")
    label: str = Field("label", description="the column to predict, of silo files")
    task: Literal["classification", "regression"] | None = Field(None, description="of silo files; inferred if absent")
    drop: tuple[str, ...] = Field((), description="columns of silo files to leave out")
    categorical: tuple[str, ...] = Field((), description="columns of names that look like numbers")
    missing: tuple[str, ...] = Field(MISSING, description="texts of silo files that mean 'no value'")
    max_categories: int = Field(100, ge=1, description="a column of more different texts is left out")
    min_count: int = Field(1, ge=1, description="a text that an owner has less often is not told to the others")
    indicators: bool = Field(False, description="an input 'is missing' beside each number that is missing somewhere")
    scale_label: bool = Field(True, description="standardise the label of a regression; false: centre it only")
    separator: str = Field("auto", description="between the cells of a CSV; auto: found in each file")
    decimal: Literal["auto", ".", ","] = Field("auto", description="of numbers in texts; auto: by all owners' cells")
    dates: DateOrder = Field("auto", description="as 05/01/2024; auto: by the cells of all owners")
    percent: Literal["auto", "share", "number"] = Field(
        "auto", description="share: 12% is 0.12; number: it is 12; auto: a share, if all of a column have the sign"
    )
    unit: str | None = Field(None, description="the column that says whose rows belong together, such as the patient")
    test: float = Field(0.2, ge=0, lt=1, description="share of each owner's rows held out, if there is no test set")
    data_dir: str | None = Field(None, description="where data sets are sought; default: $EQUIPOISE_DATA")
    download: bool = Field(False, description="fetch the data set if it is not there")
    options: dict[str, Any] = Field({}, description="arguments of the data set's own loader, such as window = 80")

    @property
    def silo_options(self) -> Options:
        """How silo files are read, the same at every owner."""
        return Options(**{name: getattr(self, name) for name in Options._fields})

    @field_validator("separator")
    @classmethod
    def _single(cls, value: str) -> str:
        if not is_separator(value):
            raise ValueError(SEPARATOR)
        return value


class PartitionSettings(Section):
    """How a data set is divided among clients; silo files and 'natural' owners are divided already."""

    kind: Division = Field("dirichlet", description=", ".join(get_args(Division)))
    clients: Count = Field(10, description="how many")
    alpha: float = Field(0.3, gt=0, description="dirichlet, quantity: small is uneven")
    similarity: float = Field(0.0, ge=0, le=1, description="similarity: the share that is dealt evenly")
    classes: int = Field(2, ge=1, description="k_classes: classes per client")
    min_size: int = Field(20, ge=1, description="dirichlet, quantity, natural: rows that every client has at least")
    max_size: int | None = Field(None, ge=1, description="training rows that every client has at most")
    thin: tuple[float, float] | None = Field(None, description="[0.3, 0.7]: 30% of the clients lose 70% of their rows")
    seed: Seed | None = Field(None, description="of the division; default: the run's")


class ModelSettings(Section):
    """What is trained."""

    name: Literal["linear", "mlp", "cnn", "resnet", "gru", "torch"] = Field(
        "linear", description="linear, mlp, cnn, resnet, gru; torch: a module of each site's own, in a federation"
    )
    loss: Literal["auto", "cross_entropy", "squared", "squared_error"] = Field(
        "auto", description="cross_entropy or squared (one-hot targets) for classes, squared_error for numbers"
    )
    l2: Annotated[float, Field(ge=0)] | Auto = Field(
        0.01,
        description="coefficient of |x|^2/2; above 0 the gap is certified; auto: linear models, by folds at the owners",
    )
    l2_intercept: float | None = Field(
        None, ge=0, description="linear: of the intercept; default: l2 / 1000 in owners' files and for numbers, else l2"
    )
    metric: Literal["auto", "full", "none"] | AtLeastOne = Field(
        "auto",
        description="linear: trained where it is well conditioned, by one exchange of sums; full, none, how many "
        "directions, or auto: by the number of inputs",
    )
    own: Literal["auto", "none", "intercept"] | tuple[str, ...] = Field(
        "auto",
        description="what owners keep for themselves: intercept, columns whose slopes are theirs too, or none; auto: "
        "intercept for owners' files and natural owners",
    )
    batch: AtLeastOne | Auto | None = Field(None, description="examples of a local step; default: all; auto: as steps")
    hidden: tuple[int, ...] = Field((64,), min_length=1, description="mlp: widths; gru: its first is the state's")
    options: dict[str, Any] = Field({}, description="other arguments of the model's function, such as width = 16")
    convexified: Auto | Literal["none"] = Field(
        "none", description="auto: [convexify] a network too, and offer that model if validation rows like it better"
    )

    @property
    def penalty(self) -> float:
        """l2, once it is a number."""
        if self.l2 == "auto":
            what = "model.l2 is 'auto', which `equipoise run`, `compare`, `sweep` and `path` choose"
            raise InputError(f"{what}; give a number here")
        return self.l2


class ConvexifySettings(Section):
    """Train the network of [model] first, then a convex model on its gradients (docs/deep_models.md)."""

    kind: Literal["sketch", "coordinates", "last", "linearised"] = Field(
        "sketch", description="sketch, coordinates or last: features; linearised: the network's first-order expansion"
    )
    features: int = Field(5000, ge=1, description="how many, of a sketch or of coordinates")
    l2: float = Field(1e-5, ge=0, description="of the convex model, as model.l2 of the network")
    batch: int | None = Field(None, ge=1, description="examples of a local step of the convex model; default: all")
    rounds: Annotated[int, Field(ge=0, lt=2**31)] | Auto = Field(
        "auto",
        description="in which the network is trained; auto: until validation rows see nothing better for 10 rounds, "
        "and at most 100, or 50 where nobody may look at such rows; 0: it stays as it begins",
    )
    network: str | None = Field(None, description="a run folder or a model of the trained network, instead")
    algorithm: Any = Field(None, validate_default=True, description="that trains the network, as [algorithm]; FedAvg")
    objective: Any = Field(None, validate_default=True, description="that the network is trained for; the average")
    seed: Seed | None = Field(None, description="of the random layer and of the features; default: the run's")
    last: str | None = Field(None, min_length=1, description="the name of the last layer, of a PyTorch module")

    @field_validator("algorithm", "objective", mode="before")
    @classmethod
    def _checked_section(cls, value: Mapping[str, object] | None, info: ValidationInfo) -> Section:
        if not isinstance(value, Mapping | None):
            raise ValueError("a table")
        kind = str(info.field_name)
        given = {"name": STAGE_1_NAMES[kind], **(value or {})}
        if given["name"] not in NAMES[kind]:  # not code of the user's own: a server could name it to its sites
            raise ValueError(f"the name of one of {', '.join(NAMES[kind])}{nearest(given['name'], NAMES[kind])}")
        section = section_of(kind, str(given["name"]))
        start = {key: size for key, size in NETWORK_STEPS.items() if key in section.model_fields}
        return section.model_validate(start | given)


STAGE_1_NAMES = {"algorithm": "fedavg", "objective": "average"}
NETWORK_STEPS = {"steps": 20, "local_lr": 0.1}  # nothing can be measured before a network is trained


class RunSettings(Section):
    """How long, how exactly, and what is written where."""

    rounds: Count = Field(
        choice.ROUNDS,
        description="of communication; auto, unless given: until the objective is certified to 0.1%, or until "
        "validation rows see nothing better for 10 rounds, and at most 100",
    )
    seed: Seed = Field(0, description="of all random numbers")
    precision: Literal["float32", "float64"] = Field("float32", description="float32 or float64")
    products: Literal["float32", "tf32", "bf16"] | None = Field(
        None, description="of matrix products on an accelerator: tf32 and bf16 are faster; default: float32"
    )
    evaluate_every: Count | None = Field(None, description="rounds between two rows of the history; default: 1%")
    checkpoint_seconds: float = Field(10.0, ge=0, description="at least so long between two checkpoints")
    clients_per_batch: int | None = Field(None, ge=1, description="clients side by side on a device; less saves memory")
    devices: int | None = Field(None, ge=1, description="over how many devices (cores of a CPU); default: what pays")
    until_gap: float | None = Field(
        None, gt=0, description="stop when the objective is certified to be within this share of the best possible"
    )
    keep_best: bool = Field(False, description="the model is that of the evaluated round whose worst fifth was best")
    keep_by: Literal["worst fifth", "loss"] = Field(
        "worst fifth", description="keep_best: or by the mean loss over the clients, as rounds = auto does"
    )
    validation: float = Field(0.2, gt=0, lt=1, description="keep_best: share of each client's training rows for that")
    patience: Count | None = Field(None, description="keep_best: stop when so many rounds have brought nothing better")
    score: str | None = Field(None, description="to sum up a run: accuracy, skill, auroc, loss, rmse, r2, module:name")
    lost: float = Field(0.0, ge=0, lt=1, description="share of replies lost on the way, for studies of drop-out")
    exchange_seconds: float = Field(
        1.0,
        ge=0,
        description="of an exchange, the way there and back, as `equipoise flower status` has it; for what is auto of "
        "algorithm.steps, algorithm.cohort and model.batch",
    )
    bytes_per_second: float = Field(1e7, gt=0, description="of the server's line, which all who are asked share; alike")
    step_seconds: float | None = Field(
        None, ge=0, description="of a local step; default: counted, at ten billion operations in a second; alike"
    )
    tensorboard: bool = Field(False, description="write what TensorBoard shows beside the history")
    mlflow: bool = Field(False, description="tell MLflow too, where its own settings (MLFLOW_TRACKING_URI) say")


class FederationSettings(Section):
    """Sites on machines of their own (`equipoise flower`); times are in seconds."""

    sites: AtLeastOne | tuple[str, ...] = Field(description="their names, or how many: then the first that come")
    gather: float = Field(300.0, gt=0, description="wait for the sites at the start")
    hello: float = Field(60.0, gt=0, description="wait for a node to say its name")
    question: float = Field(300.0, gt=0, description="wait for statistics and curvatures, before the first round")
    exchange: float = Field(600.0, gt=0, description="wait for the replies of an exchange; who is slower is left out")
    poll: float = Field(0.2, gt=0, description="between two looks for replies")
    quantile: float | None = Field(
        None, gt=0, lt=1, description="end an exchange early, by this quantile of the seconds that past replies took"
    )
    slack: float = Field(3.0, ge=1, description="after so many times that quantile")
    quorum: float = Field(0.5, ge=0, le=1, description="but not before this share of those asked has answered")
    least: int = Field(1, ge=0, description="sites that have to answer in every exchange, or the round is repeated")
    tries: int = Field(3, ge=1, description="times that a round is tried; then the run stops, to be resumed")
    heavy: float = Field(0.8, gt=0, le=1, description="share of the weight from which on a site is named in a warning")
    bound: Annotated[float, Field(ge=10)] | Literal["none"] = Field(
        100.0, description="a reply so many times longer than its site's and the others' ever were is left out; or none"
    )
    cap: float | None = Field(None, gt=0, le=1, description="most weight that a site can have")
    compress: Literal["float32", "bfloat16"] | None = Field(
        None, description="gradients go up as differences of this type; the limit stays the same"
    )
    compress_sums: bool = Field(False, description="updates and sums too; the server then keeps a vector of every site")
    clip: float | None = Field(None, ge=1, description="a loss counts for at most so many times the cohort's median")
    clip_gradients: float | None = Field(None, ge=1, description="a gradient's length, in the same way")
    project: bool | None = Field(
        None,
        description="updates of scaffpd that no honest site could have sent are moved to where one could; default: "
        "where that costs honest sites nothing",
    )
    secure: bool = Field(False, description="totals are masked: the server learns sums over sites, see docs/privacy.md")
    secure_bound: float = Field(2.0**20, gt=0, le=1e15, description="no site sends a larger number in a masked total")
    threshold: int | None = Field(None, ge=2, description="sites that open a masked sum together; default: all but one")

    @property
    def believed(self) -> float | None:
        return None if self.bound == "none" else self.bound


class PrivacySettings(Section):
    """Differential privacy of every record, against everybody who sees what leaves a site (docs/privacy.md)."""

    epsilon: float = Field(gt=0, description="of the whole run; 1 is strong, 10 is weak")
    delta: float = Field(1e-5, gt=0, lt=1, description="below 1 / (rows of a site)")
    clip: float = Field(1.0, gt=0, description="what one record can add to a gradient, as a length")
    loss_bound: float = Field(4.0, gt=0, description="what one record can add to a loss (SCAFF-PD)")


class PersonalSettings(Section):
    """A model of each owner's own, beside the shared one (docs/personal.md)."""

    kind: Literal["none", "best", "fine_tuning", "moreau"] = Field(
        "fine_tuning",
        description="best: the shared one, one tuned from it or one of its own rows alone, by folds of its own rows; "
        "fine_tuning: after training; moreau: the shared model is trained for it; none: no such model",
    )
    mu: float = Field(1.0, gt=0, description="moreau: how strongly own models are held to the shared one")
    pulls: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (0.1, 1.0, 10.0), min_length=1, description="fine_tuning: the same, tried one by one"
    )
    validation: float = Field(
        0.2, gt=0, lt=1, description="fine_tuning: share of an owner's training rows by which it chooses"
    )
    steps: Count = Field(100, description="towards an own model; moreau of squared losses is exact and takes none")
    lr: Annotated[float, Field(gt=0)] | Auto = Field("auto", description="their size; auto: measured (linear models)")


WORDS = {
    "steps": "local steps in a round; auto: as many as pay, by trial rounds and what a round costs (run.step_seconds)",
    "memory": "directions that the server remembers; with a cohort about 2 * clients / cohort",
    "repeat": "whether clients say their losses and gradients twice in a round, for where many replies are lost",
    "local_lr": "their size; auto: 1/L, measured (linear models), or by a race (networks)",
    "lr": "the step size; auto: 1/L, measured (linear models), or by a race (networks)",
    "dual_lr": "step size of the client weights",
    "server_lr": "step size of the server",
    "cohort": "clients drawn in a round; default: everyone; auto: as many as pay, as steps",
    "coin": "the chance of each client to take part, instead",
    "optimizer": "of the local steps: adam, or { name = .., clip = .., options = { b1 = .. } } of optax; local_lr is "
    "its step size",
    "server_optimizer": "of the server, on what a round would change: { name = .., learning_rate = .. } of optax",
    "schedule": "how step sizes fall to zero: linear or cosine, over all rounds; late: linear, over the last third; "
    "default: constant, and late where a race finds the step size of a network",
    "of": "losses; gains: losses less that of each owner's own model on rows that it has not seen; auto: gains for "
    "owners' files and natural owners",
    "price": "instead of rho: how much average skill the fairest model may cost, such as 0.01 for one point",
    "rule": "{ sigma = .., theta = .., tau = steps * local_lr unless given }; tuned: measured (linear models)",
}
AUTO_WORDS = {"mu": "auto: the model's l2"}


class RuleSettings(Section):
    """Step sizes of SCAFF-PD: of the model, of the weights, and the momentum between them."""

    tau: Annotated[float, Field(gt=0)] | Auto = "auto"  # steps * local_lr: the server takes the local steps as they are
    sigma: float = Field(gt=0)
    theta: float = Field(1.0, ge=0, le=1)


Optimizer = Literal["sgd", "adam", "adamw", "yogi", "adagrad", "rmsprop", "lion"]


class OptimizerSettings(Section):
    """A step of optax."""

    name: Optimizer
    learning_rate: float = Field(1.0, gt=0)  # of clients: local_lr times it
    clip: float | None = Field(None, gt=0)  # gradients to this length
    options: dict[str, Any] = Field({})  # arguments of optax's own function, such as b1 = 0.9


Steps = Annotated[OptimizerSettings, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)]


@cache
def section_of(kind: str, name: str) -> type[Section]:
    """The settings of an algorithm or objective: what its own function takes, and what is done around it."""
    if kind == "algorithm":
        algorithm = algorithms.named(name)
        fields: dict[str, Any] = {"name": (Literal[name], Field(name, description=algorithm.about))}
        if algorithm.takes_rule:
            fields["rule"] = (Tuned | RuleSettings, Field("tuned", description=WORDS["rule"]))
        fields |= {argument.name: _field(argument, algorithm.defaults) for argument in algorithm.settings}
        fields["cohort"] = (AtLeastOne | Auto | None, Field(None, description=WORDS["cohort"]))
        fields["coin"] = (float | None, Field(None, gt=0, le=1, description=WORDS["coin"]))
        for key in ("optimizer", "server_optimizer"):
            fields[key] = (Steps | None, Field(None, description=WORDS[key]))
        schedules = Literal["constant", "linear", "cosine", "late"] | None
        fields["schedule"] = (schedules, Field(None, description=WORDS["schedule"]))
    else:
        objective = objectives.named(name)
        fields = {"name": (Literal[name], Field(name))}
        fields |= {argument.name: _field(argument, objective.defaults) for argument in objective.settings}
        fields["of"] = (Literal["auto", "losses", "gains"], Field("auto", description=WORDS["of"]))
        if name in choice.PRICED:
            fields["price"] = (float | None, Field(None, gt=0, lt=1, description=WORDS["price"]))
    return pydantic.create_model(f"{kind}.{name}", __base__=Section, **fields)


def _field(argument: inspect.Parameter, defaults: Mapping[str, object]) -> tuple[Any, Any]:
    """The setting of a factory's argument; without a default anywhere it has to be given."""
    kind, nothing = argument.annotation, inspect.Parameter.empty
    if kind in (int, float):
        kind = Annotated[kind, Field(ge=0) if argument.name == "mu" else Field(gt=0)]
    start = defaults.get(argument.name, ...) if argument.default is nothing else argument.default
    if start == "auto" or argument.name == "steps":
        kind = kind | Auto
    words = WORDS.get(argument.name) or (AUTO_WORDS.get(argument.name) if start == "auto" else None)
    return Any if kind is nothing else kind, Field(start, description=words)


OBJECTIVES = ("average", *objectives.DUALS)
NAMES = {"algorithm": tuple(ALGORITHMS), "objective": OBJECTIVES}  # of sections that have the settings of a function
SECTIONS: dict[str, type[Section]] = {
    "data": DataSettings,
    "partition": PartitionSettings,
    "model": ModelSettings,
    "convexify": ConvexifySettings,
    "run": RunSettings,
    "federation": FederationSettings,
    "privacy": PrivacySettings,
    "personal": PersonalSettings,
}
SCORES = "accuracy, auroc, rmse, r2, loss, or a score that sites have of their own (--torch)"
KEYS = ("name", *SECTIONS, "objective", "algorithm", "compare", "sweep")


class Config(BaseModel):
    """One run, every setting known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "run"
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    model: ModelSettings = ModelSettings()
    convexify: ConvexifySettings | None = None  # None: the model is trained as it is
    objective: Any = None  # an `objective_section`
    algorithm: Any = None  # an `algorithm_section`
    run: RunSettings = RunSettings()
    federation: FederationSettings | None = None  # None: on one machine
    privacy: PrivacySettings | None = None  # None: no noise
    personal: PersonalSettings | None = None  # None: the shared model alone, as of kind "none"

    @field_validator("objective", "algorithm", mode="before")
    @classmethod
    def _checked_section(cls, value: Mapping[str, Any], info: ValidationInfo) -> Section:
        return section_of(str(info.field_name), value["name"]).model_validate(value)

    @property
    def batch(self) -> int | None:
        """Examples of a local step of [algorithm], once that is a number."""
        batch = self.model.batch if self.convexify is None else self.convexify.batch
        return batch if batch != "auto" else None

    @property
    def objective_price(self) -> float | None:
        """What fairness may cost, where rho is to be found by it."""
        return getattr(self.objective, "price", None)

    @property
    def own_models(self) -> PersonalSettings | None:
        """How owners come to models of their own; None: they have none."""
        return None if self.personal is None or self.personal.kind == "none" else self.personal

    def used(self) -> dict[str, Any]:
        """The settings that this run has a use for: owners' own files have no name of a data set and no partition."""
        files = self.data.silos is not None or self.federation is not None
        unused: Any = {"partition": True, "data": {"name", "data_dir", "download", "options"}} if files else {}
        unused |= {} if self.objective_price is None else {"objective": {"rho"}}
        return self.model_dump(exclude_none=True, mode="json", exclude=unused)

    def toml(self) -> str:
        """A file that `read` makes the same configuration of."""
        return tomli_w.dumps(self.used())


def parse(settings: Mapping[str, Any], *, source: str = "the configuration", own_code: bool = True) -> Config:
    """The configuration of one run; [compare] and [sweep] are for `plan.py`.

    `own_code` allows algorithms and objectives named as module:name, which are imported: not in settings of others.
    """
    given = {key: value for key, value in settings.items() if key not in ("compare", "sweep")}
    for key, value in given.items():
        if key not in KEYS:
            raise mistakes.no_key(source, "", key, KEYS)
        table = key == "name" or isinstance(value, Mapping)
        require(table, f"{source}: {key} is {mistakes.shown(value)}; give a table, [{key}]")
    best = choice.best_algorithm(given).name
    if best == "scaffpd_minibatch" and "name" not in given.get("algorithm", {}) and "convexify" not in given:
        given["model"] = {"batch": choice.BATCH, **given["model"]}
    own = {"run.score": (given.get("run", {}).get("score"), SCORES)}
    for key, start in (("objective", "chi2"), ("algorithm", best)):
        given[key] = {"name": start, **given.get(key, {})}
        own[f"{key}.name"] = (given[key]["name"], ", ".join(NAMES[key]))
        if not is_reference(given[key]["name"]) and given[key]["name"] not in NAMES[key]:
            raise mistakes.no_value(source, f"{key}.name", given[key]["name"], NAMES[key])
    both = f"{source}: objective.rho and objective.price are both given, and the price finds rho; give one of them"
    require(any(given["objective"].get(key) is None for key in ("rho", "price")), both)
    for key, (name, instead) in own.items():
        if is_reference(name):
            imported = f"{source}: {key} is '{name}', which sites would have to import because a server says so"
            require(own_code and "federation" not in given, f"{imported}; in a federation use one of {instead}")
            check_reference(source, key, name)
    run = given.get("run", {})
    if run.get("rounds", "auto") == "auto":
        noise = f"{source}: run.rounds is 'auto', and noise of [privacy] is made for a number of rounds; give one"
        require("privacy" not in given or "rounds" not in run, noise)
        given["run"] = choice.how_long(given)
    try:
        config = Config.model_validate(given)
    except ValidationError as error:
        raise mistakes.mistake(source, error, given, _fields) from None
    mistakes.checked(source, config.model_dump())
    config = choice.settled(config)
    if config.personal is None and choice.offers(config):
        config = config.model_copy(update={"personal": PersonalSettings(kind="best")})
    if sentence := next(contradictions(config), None):
        raise InputError(f"{source}: {sentence}")
    return config


def check_reference(source: str, key: str, name: str) -> None:
    """Code of the user's own can be imported, and called with what it will be given."""
    try:
        load(name) if key == "run.score" else section_of(key.partition(".")[0], name)
    except InputError as error:
        raise InputError(f"{source}: {key}: {error}") from error
    except PydanticSchemaGenerationError as error:
        wrong = f"'{name}' takes an argument that a file cannot give ({str(error).splitlines()[0]})"
        raise InputError(f"{source}: {key}: {wrong}; name a Record that has it in not_settings") from error


def _fields(sections: list[str], settings: Any) -> list[str]:
    if not sections:
        return list(KEYS)
    first, *below = sections
    if first == "convexify" and below:
        return _fields(below, settings[first])
    if below:
        return list((RuleSettings if below[0] == "rule" else OptimizerSettings).model_fields)
    section = SECTIONS.get(first) or section_of(first, settings[first].get("name", STAGE_1_NAMES.get(first)))
    return list(section.model_fields)
