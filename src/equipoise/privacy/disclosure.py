"""What a run tells the server about single sites, in sentences: printed before it starts, in the report, and shown to
a site that is asked for its approval."""

from collections.abc import Iterator, Sequence

import jax
from jaxtyping import PyTree

from equipoise.privacy.fixed_point import largest_error
from equipoise.privacy.site_masks import least_threshold
from equipoise.protocol import Wire

WORDS = {
    "summed": "part of every sum, of which it keeps the whole",
    "p": "weight",
    "w": "log weight",
    "value": "weight times update",
    "x": "model",
}
PLAIN = "the server is trusted not to read single ones"


def fields(tree: PyTree) -> list[str]:
    """The names of what crosses, each once."""
    names = []
    for path, _ in jax.tree.flatten_with_path(tree)[0]:
        words = [str(getattr(p, "name", getattr(p, "key", ""))) for p in path]
        last = next((word for word in reversed(words) if word), "values")
        last = "summed" if "summed" in words else last  # whatever it is of
        names.append(WORDS.get(last, last.replace("_", " ")))
    return list(dict.fromkeys(names))


def sums_of_features(*, masked: bool) -> str:
    """Of a run whose rows are features of a network."""
    return (
        "once the network is trained: of the features that each site makes of its rows, and keeps, the server "
        + ("learns the sums over all sites" if masked else f"is sent each site's sums ({PLAIN})")
        + ": how many rows, for every feature the sum and the sum of squares, by which all standardise alike"
    )


def sums_of_moments(*, masked: bool) -> str:
    """Of a run whose model is trained in a metric."""
    return (
        "before the first round, for the metric: of the second moments of each site's inputs the server "
        + ("learns the mean over the sites, at least three" if masked else f"is sent each site's own ({PLAIN})")
        + ": for every pair of inputs the mean of their product over the site's rows (or some sums of these)"
    )


def along_folds() -> str:
    """Of a run whose penalty or objective is chosen by folds."""
    return (
        "before the first round, for every penalty and objective that is tried: the server sees each site's loss, "
        "gradient, smoothness, weight and update, the curvature of its loss, and what the rows of its five folds lose "
        "by models without them and by the base rate, each as one mean over all of the site's training rows"
    )


def of_own_parts(*, masked: bool, seen: bool) -> str:
    """Of a run whose sites keep a part of the model. `seen`: the server sees gradients, or updates, of single sites.

    The slope of f_i in the shared intercept, less that of l2, is minus the own intercept over the number of rows
    (`tasks.own`: both are slopes in the same outputs), so that a gradient holds it, though no message does.
    """
    learned = "the server learns the sum over the sites that answered" if masked else "no message tells"
    implied = "; but from the gradients and updates of a site the server can work that site's out" if seen else ""
    return f"of the parts of the model that sites keep for themselves {learned}{implied}"


def disclosed(
    crossing: Sequence[Wire],  # what the algorithm's exchanges send
    *,
    masked: bool,  # totals are masked, and evaluations tell sums instead of each site's scores
    measured: bool,  # the curvature and the slope of their loss, before the first round
    n: int,  # sites
    threshold: int | None,  # of these, that open a masked sum together; None: all but one
    bound: float,  # of the masked numbers
    own_models: bool,  # sites make models of their own, after training
    features: bool,  # sums of features of a network, which are the rows of the run
    moments: bool,  # second moments of their inputs
    units: bool,  # as how many their rows of each data.unit count
    baselines: bool,  # the loss of a model of their own
    own_parts: bool,  # sites keep a part of the model for themselves
    folds: bool = False,  # penalties, or objectives, are tried on folds of their rows
) -> Iterator[str]:
    """What the server learns of the sites, a sentence each."""
    yield (
        "before the first round the server learns of each site: its name, its number of rows, statistics of its columns"
        + (", as how many independent rows those of its units count" if units else "")
        + (", the largest curvature of its loss and the slope at the start" if measured else "")
    )
    if baselines:
        yield (
            "before the first round the server learns of each site how well a model of its own rows alone does on rows "
            "that it has not seen, one number: the objective is of gains over it"
        )
    if features:
        yield sums_of_features(masked=masked)
    if moments:
        yield sums_of_moments(masked=masked)
    if folds:
        yield along_folds()
    for exchange in crossing:
        each, total = fields(exchange.reply.each), fields(exchange.reply.total)
        if each:
            yield f"in every round, {exchange.exchange}: the server sees each site's {', '.join(each)}"
        if total and masked:
            yield (
                f"in every round, {exchange.exchange}: of {', '.join(total)} the server learns the sum over the sites "
                "that answered, at least three, and no site's own"
            )
        elif total:
            yield f"in every round, {exchange.exchange}: the server is sent each site's {', '.join(total)}; {PLAIN}"
    if masked and any(fields(exchange.reply.each) for exchange in crossing):
        yield (
            "masks hide sums only, and not what the server sees of each site: of scaffpd_sums (objective kl), scaffold "
            "and fedavg it sees nothing"
        )
    if masked:
        yield "when the model is evaluated: the server learns sums of the sites' losses and scores, and no site's own"
    else:
        yield (
            "when the model is evaluated: the server sees each site's scores and its training loss, and of classes how "
            "common they are there"
        )
    if own_parts:
        # Whether a reply shows as much of each site as a gradient does: more than a number.
        whole = any(leaf.size > 1 for exchange in crossing for leaf in jax.tree.leaves(exchange.reply.each))
        yield of_own_parts(masked=masked, seen=not masked or whole)
    if own_models:
        yield (
            "after training: the server sees each site's scores with the shared model and with its own, which stays at "
            "the site"
        )
    if masked:
        helpers = colluders(n, max(threshold or n - 1, least_threshold(n)))
        yield (
            f"masked sums are exact to {largest_error(n, bound):.1g}; the server alone cannot read a single site's "
            f"part, and could with {helpers} of the {n} sites; it reads each sum, and what two of them differ by"
        )


def colluders(n: int, threshold: int) -> int:
    """The fewest of n sites that could read another's part, together with a server that lies.

    It needs `threshold` shares of both secrets of a site. An honest site gives one kind, and may be told another story
    than the next: n - c honest sites and c that give both make 2 `threshold` shares from c = 2 `threshold` - n on.
    """
    return min(2 * threshold - n, n - 1)
