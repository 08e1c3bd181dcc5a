"""A machine that is not as it should be: loaded by Python at its start where this folder is on the path.

$EQUIPOISE_TEST_CLOCK: the seconds that its clock is ahead.
$EQUIPOISE_TEST_INLINE: the bytes from which on messages go as Flower's objects, as very large ones do.
"""

import datetime
import importlib.util
import os
import sys
import time

AHEAD = float(os.environ.get("EQUIPOISE_TEST_CLOCK", "0"))
INLINE = os.environ.get("EQUIPOISE_TEST_INLINE")
TRANSPORT = "equipoise.deploy.network.transport"
true_time, true_datetime = time.time, datetime.datetime


class Shifted(true_datetime):
    @classmethod
    def now(cls, tz=None):
        return true_datetime.fromtimestamp(time.time(), tz)


class Shortened:
    """Sets the limit when the module is imported: importing it here would load JAX into every process."""

    def find_spec(self, name, path=None, target=None):
        if name != TRANSPORT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.INLINE = int(INLINE)

        spec.loader.exec_module = exec_module
        return spec


if AHEAD:
    time.time = lambda: true_time() + AHEAD
    datetime.datetime = Shifted
if INLINE:
    sys.meta_path.insert(0, Shortened())
