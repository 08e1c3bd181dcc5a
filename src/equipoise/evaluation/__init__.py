"""How good a model is for each client, how evenly, and how certain that is; nothing in here prints.

rules        which score a run is summed up by, which way it is better, who the worst fifth are
predictions  scores of a model's outputs: which of them fit a task, and what each row adds to them
exchange     evaluation as an exchange: the server sends a model, each client scores it on its own rows
fairness     summaries of one number per client
intervals    what finitely many rows leave open
skill        the log loss against that of each owner's base rate
standing     all of it for one table
"""

from equipoise.evaluation.exchange import PerClient as PerClient
from equipoise.evaluation.exchange import evaluate as evaluate
from equipoise.evaluation.exchange import evaluate_own as evaluate_own
from equipoise.evaluation.exchange import evaluation as evaluation
from equipoise.evaluation.exchange import evaluator as evaluator
from equipoise.evaluation.exchange import of_rows as of_rows
from equipoise.evaluation.intervals import Bounds as Bounds
from equipoise.evaluation.predictions import MainScore as MainScore
from equipoise.evaluation.predictions import ScoreRecord as ScoreRecord
from equipoise.evaluation.predictions import accuracy as accuracy
from equipoise.evaluation.predictions import auroc as auroc
from equipoise.evaluation.predictions import main_score_named as main_score_named
from equipoise.evaluation.predictions import r2 as r2
from equipoise.evaluation.predictions import rmse as rmse
from equipoise.evaluation.predictions import suited as suited
from equipoise.evaluation.rules import higher_is_better as higher_is_better
from equipoise.evaluation.rules import main_score as main_score
from equipoise.evaluation.skill import with_skill as with_skill
from equipoise.evaluation.standing import Standing as Standing
from equipoise.evaluation.standing import chosen as chosen
from equipoise.evaluation.standing import standing as standing
