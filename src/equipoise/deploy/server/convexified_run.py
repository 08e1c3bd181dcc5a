"""Train-Convexify-Train over the network: what comes before the run itself.

Stage 1 is a run of its own in `stage.1/` (`server.py`); here is stage 2. The network travels in the agreement, a site
makes features of its own rows and keeps them, and one exchange of their sums is all that they tell: from it the server
makes the scaling, which travels in the agreement too.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from equipoise.algorithms.moments import moments
from equipoise.cohorts import everyone
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, NetworkRecord, as_text
from equipoise.deploy.server.reach_agreement import ask_before, send_agreement
from equipoise.deploy.server.sites import ConnectedSites
from equipoise.deploy.wire.secure import SecureSums
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import Trained
from equipoise.models.gradient_features import scaling
from equipoise.privacy.disclosure import sums_of_features


def agree_on_features(
    config: Config, federation: ConnectedSites, known: Agreement, trained: Trained, secure: SecureSums | None
) -> Agreement:
    """The agreement of the run on features of the trained network; all sites have to take part in it."""
    theta, _ = ravel_pytree(trained.theta)
    network = NetworkRecord(theta=as_text(theta, config), how=trained.how, down=trained.sent.down, up=trained.sent.up)
    agreed = known.model_copy(
        update={"run": f"{known.run}-features", "network": network, "curvature": None, "slope": None}
    )
    if agreement.has_features(config):
        print(f"what the server learns: {sums_of_features(masked=secure is not None)}", flush=True)
        federation.ask("agreement", agreed.model_dump_json())
        mean, scale = (as_text(part, config) for part in scaling(_summed(config, federation, agreed, secure)))
        scaled = network.model_copy(update={"mean": mean, "scale": scale})
        agreed = agreed.model_copy(update={"network": scaled})
    return send_agreement(config, federation, agreed)


def _summed(config: Config, federation: ConnectedSites, agreed: Agreement, secure: SecureSums | None) -> Any:
    n = len(agreed.sites)
    like = agreement.features_like(config, agreement.network_problem(config, agreed))
    with jax.enable_x64(True):
        algorithm = moments(like.inputs.shape[1], everyone(n))
        start, digest = jnp.zeros(algorithm.size, like.inputs.dtype), agreement.digest_of(config, agreed)
        details = {"part": "moments", "run": agreed.run, "shard": like, "config": digest, "secure": secure}
        return ask_before(config, federation, algorithm, start, least=n, **details)
