"""A machine whose clock is wrong: loaded by Python at its start where this folder is on the path.

$EQUIPOISE_TEST_CLOCK: the seconds that it is ahead.
"""

import datetime
import os
import time

AHEAD = float(os.environ.get("EQUIPOISE_TEST_CLOCK", "0"))
true_time, true_datetime = time.time, datetime.datetime


class Shifted(true_datetime):
    @classmethod
    def now(cls, tz=None):
        return true_datetime.fromtimestamp(time.time(), tz)


if AHEAD:
    time.time = lambda: true_time() + AHEAD
    datetime.datetime = Shifted
