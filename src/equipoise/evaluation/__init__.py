"""How good a model is for each client, how evenly, and how certain that is; nothing in here prints.

rules        which score a run is summed up by, which way it is better, who the worst fifth are
predictions  scores of a model's outputs: which of them fit a task, and what each row adds to them
exchange     evaluation as an exchange: the server sends a model, each client scores it on its own rows
fairness     summaries of one number per client
intervals    what finitely many rows leave open
skill        the log loss against that of each owner's base rate
standing     all of it for one table
"""

from equipoise.evaluation.exchange import PerClient, evaluate, evaluate_own, evaluation, evaluator, of_rows
from equipoise.evaluation.intervals import Bounds
from equipoise.evaluation.predictions import MainScore, ScoreRecord, accuracy, auroc, main_score_named, r2, rmse, suited
from equipoise.evaluation.rules import higher_is_better, main_score
from equipoise.evaluation.skill import with_skill
from equipoise.evaluation.standing import Standing, chosen, standing

__all__ = [
    "Bounds", "MainScore", "PerClient", "ScoreRecord", "Standing", "accuracy", "auroc", "chosen", "evaluate",
    "evaluate_own", "evaluation", "evaluator", "higher_is_better", "main_score", "main_score_named", "of_rows", "r2",
    "rmse", "standing", "suited", "with_skill",
]  # fmt: skip
