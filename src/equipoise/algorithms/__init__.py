"""Every algorithm, by name."""

from equipoise import extensions
from equipoise.algorithms.afl import AFL
from equipoise.algorithms.afl import afl as afl
from equipoise.algorithms.agnostic_fedavg import AGNOSTIC_FEDAVG
from equipoise.algorithms.agnostic_fedavg import agnostic_fedavg as agnostic_fedavg
from equipoise.algorithms.alone import alone as alone
from equipoise.algorithms.clipping import clip_gradients as clip_gradients
from equipoise.algorithms.clipping import clip_losses as clip_losses
from equipoise.algorithms.compression import compress_replies as compress_replies
from equipoise.algorithms.delta_fl import DELTA_FL
from equipoise.algorithms.delta_fl import delta_fl as delta_fl
from equipoise.algorithms.drfa import DRFA
from equipoise.algorithms.drfa import drfa as drfa
from equipoise.algorithms.drfa_alternative import DRFA_ALTERNATIVE
from equipoise.algorithms.drfa_alternative import drfa_alternative as drfa_alternative
from equipoise.algorithms.fedavg import FEDAVG
from equipoise.algorithms.fedavg import fedavg as fedavg
from equipoise.algorithms.fedopt import FEDADAM, FEDAVGM, FEDYOGI
from equipoise.algorithms.fedopt import fedadam as fedadam
from equipoise.algorithms.fedopt import fedavgm as fedavgm
from equipoise.algorithms.fedopt import fedyogi as fedyogi
from equipoise.algorithms.fedprox import FEDPROX
from equipoise.algorithms.fedprox import fedprox as fedprox
from equipoise.algorithms.fine_tuning import Split as Split
from equipoise.algorithms.fine_tuning import fine_tuning as fine_tuning
from equipoise.algorithms.guarded_steps import may_be_guarded as may_be_guarded
from equipoise.algorithms.guarded_steps import with_guarded_steps as with_guarded_steps
from equipoise.algorithms.in_metric import told_in_x as told_in_x
from equipoise.algorithms.local_schedule import with_late_decay as with_late_decay
from equipoise.algorithms.local_schedule import with_local_schedule as with_local_schedule
from equipoise.algorithms.own_cohort import with_cohort as with_cohort
from equipoise.algorithms.projection import project_updates as project_updates
from equipoise.algorithms.propfair import PROPFAIR
from equipoise.algorithms.propfair import propfair as propfair
from equipoise.algorithms.qfedavg import QFEDAVG, QFEDSGD
from equipoise.algorithms.qfedavg import qfedavg as qfedavg
from equipoise.algorithms.qfedavg import qfedsgd as qfedsgd
from equipoise.algorithms.record import Record as Record
from equipoise.algorithms.record import record_of
from equipoise.algorithms.scaffold import SCAFFOLD
from equipoise.algorithms.scaffold import scaffold as scaffold
from equipoise.algorithms.scaffpd import SCAFFPD, SCAFFPD_SECURE
from equipoise.algorithms.scaffpd import scaffpd as scaffpd
from equipoise.algorithms.scaffpd_ls import SCAFFPD_LS
from equipoise.algorithms.scaffpd_ls import scaffpd_ls as scaffpd_ls
from equipoise.algorithms.scaffpd_minibatch import SCAFFPD_MINIBATCH
from equipoise.algorithms.scaffpd_minibatch import scaffpd_minibatch as scaffpd_minibatch
from equipoise.algorithms.scaffpd_model import SCAFFPD_MODEL
from equipoise.algorithms.scaffpd_model import scaffpd_model as scaffpd_model
from equipoise.algorithms.scaffpd_partial import SCAFFPD_PARTIAL
from equipoise.algorithms.scaffpd_partial import scaffpd_partial as scaffpd_partial
from equipoise.algorithms.scaffpd_sums import SCAFFPD_SUMS
from equipoise.algorithms.scaffpd_sums import scaffpd_sums as scaffpd_sums
from equipoise.algorithms.server_optimizer import with_server_optimizer as with_server_optimizer
from equipoise.algorithms.sgd import SGD
from equipoise.algorithms.sgd import sgd as sgd
from equipoise.algorithms.term import TERM
from equipoise.algorithms.term import term as term
from equipoise.algorithms.wrapping import Beside as Beside
from equipoise.algorithms.wrapping import chain as chain
from equipoise.algorithms.wrapping import wrap as wrap
from equipoise.algorithms.wrapping import wrap_client as wrap_client
from equipoise.algorithms.wrapping import wrap_server as wrap_server
from equipoise.errors import one_of

FOR_THE_AVERAGE = (FEDAVG, SGD, FEDPROX, FEDAVGM, FEDADAM, FEDYOGI, SCAFFOLD)
FAIR = (QFEDSGD, QFEDAVG, TERM, PROPFAIR, DELTA_FL)
ROBUST = (AFL, AGNOSTIC_FEDAVG, DRFA, DRFA_ALTERNATIVE)
CORRECTED = (SCAFFPD, SCAFFPD_SECURE, SCAFFPD_PARTIAL, SCAFFPD_MINIBATCH, SCAFFPD_SUMS, SCAFFPD_LS, SCAFFPD_MODEL)
ALGORITHMS: dict[str, Record] = {record.name: record for record in FOR_THE_AVERAGE + FAIR + ROBUST + CORRECTED}


def named(name: str) -> Record:
    """The record of a listed name, or of a factory or Record of the user's own, "module:name"."""
    if extensions.is_reference(name):
        return record_of(extensions.load(name), name)
    one_of("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
