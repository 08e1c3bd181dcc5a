"""What every client minimises."""

from equipoise.tasks.baseline import WithBaseline as WithBaseline
from equipoise.tasks.baseline import less_baseline as less_baseline
from equipoise.tasks.examples import over_examples as over_examples
from equipoise.tasks.examples import softmax_regression as softmax_regression
from equipoise.tasks.examples import task_of as task_of
from equipoise.tasks.linearised import linearised as linearised
from equipoise.tasks.metric import Metric as Metric
from equipoise.tasks.metric import WithMetric as WithMetric
from equipoise.tasks.metric import in_metric as in_metric
from equipoise.tasks.moreau import Personal as Personal
from equipoise.tasks.moreau import moreau_envelope as moreau_envelope
from equipoise.tasks.own import own_part as own_part
from equipoise.tasks.quadratic import quadratic as quadratic
from equipoise.tasks.squares import least_squares as least_squares
from equipoise.tasks.squares import ridge as ridge
from equipoise.tasks.task import Convexity as Convexity
from equipoise.tasks.task import Examples as Examples
from equipoise.tasks.task import Linear as Linear
from equipoise.tasks.task import Own as Own
from equipoise.tasks.task import Task as Task
from equipoise.tasks.task import losses as losses
from equipoise.tasks.task import with_local_optimizer as with_local_optimizer
