"""What runs an algorithm: compiled, in plain Python, or over a network."""

from equipoise.engines import kernel as kernel
from equipoise.engines.debug import debug as debug
from equipoise.engines.simulator import Result as Result
from equipoise.engines.simulator import simulate as simulate
from equipoise.engines.sweep import Trial as Trial
from equipoise.engines.sweep import grid as grid
from equipoise.engines.sweep import sweep as sweep
