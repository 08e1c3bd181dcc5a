"""SCAFF-PD whose clients release noisy losses and gradients only, and as few of them as can be.

Beyond the paper, which has no privacy. A round releases a loss and a gradient c_i = g_i(x). With one local step
du_i = g_i(x) - c_i + c, and g_i(x) is c_i again, so du_i = c and the second exchange needs no row; computed again it
would be another noisy gradient, and cost as much privacy as the first. With J > 1 local steps each of them is one more
release, at a model that nobody has asked about before.
"""

from collections.abc import Callable

from equipoise.algorithms.messages import LossAndGradient, ModelMessage
from equipoise.algorithms.scaffpd import Client, Correction, Server
from equipoise.algorithms.wrapping import wrap
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, RandomKey, Reply, Vector, weighted
from equipoise.tasks.task import Scalar

Release = Callable[[Vector, Data, RandomKey], tuple[Scalar, Vector]]  # as `tasks.private.noisy_releases` makes it


@numbers_are_leaves
def private_scaffpd(algorithm: Algorithm[Server, Client], release: Release, *, steps: int) -> Algorithm[Server, Client]:
    """`scaffpd` with `steps` local steps on a private task, of which `release` tells a loss and a gradient at once."""
    require(algorithm.corrected, f"the private form is of scaffpd, not of {algorithm.name}")

    def tell(message: ModelMessage, _: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x = message.x
        loss, c_i = release(x, data, key)
        return Client(x, c_i), Reply(each=LossAndGradient(loss, c_i))

    def step(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        return mine, Reply(total=weighted(message.lam_i, message.c))

    works = (tell, step) if steps == 1 else (tell,)
    return wrap(algorithm, lambda k, exchange: exchange._replace(work=works[k]) if k < len(works) else exchange)
