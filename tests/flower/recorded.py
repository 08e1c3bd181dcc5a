"""The faulty ClientApp, which also writes down every message as it crosses, and what a site's totals really were.

Beside $EQUIPOISE_TEST_FAULTS: SITE.crossed, the bytes of all messages and replies; SITE.totals, a JSON line for each.
"""

import json

import jax
import numpy as np
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from equipoise.deploy.site import messages as client
from tests.flower.faulty import Faulty, plan_file

hidden = client.masked


def masked(secure, spec, at, content, reply, weights):
    numbers = [float(a) for leaf in jax.tree.leaves(reply.total) for a in np.ravel(leaf)]
    line = {"part": at.part, "round": at.round, "exchange": at.exchange, "numbers": numbers}
    with (plan_file().parent / f"{secure.masks.name}.totals").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return hidden(secure, spec, at, content, reply, weights)


client.masked = masked


class Recorded(Faulty):
    def __call__(self, message, context):
        reply = super().__call__(message, context)
        with (plan_file().parent / f"{context.node_config['site']}.crossed").open("ab") as file:
            for one in (message, reply):
                if one.has_content():
                    file.writelines(part.deflate() for part in get_all_nested_objects(one).values())
        return reply


app = Recorded()
