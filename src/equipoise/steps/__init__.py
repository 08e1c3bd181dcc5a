"""Step sizes of SCAFF-PD: rules, and the constants they are made of."""

from equipoise.steps.measure import Tuned as Tuned
from equipoise.steps.measure import bounded as bounded
from equipoise.steps.measure import client_smoothness as client_smoothness
from equipoise.steps.measure import estimate_constants as estimate_constants
from equipoise.steps.measure import near_solution as near_solution
from equipoise.steps.measure import rough_smoothness as rough_smoothness
from equipoise.steps.measure import rule_for as rule_for
from equipoise.steps.measure import smoothness as smoothness
from equipoise.steps.measure import tuned as tuned
from equipoise.steps.rules import Coefficients as Coefficients
from equipoise.steps.rules import Constants as Constants
from equipoise.steps.rules import Rule as Rule
from equipoise.steps.rules import StepSizes as StepSizes
from equipoise.steps.rules import accelerated as accelerated
from equipoise.steps.rules import auto as auto
from equipoise.steps.rules import coefficients as coefficients
from equipoise.steps.rules import constant as constant
from equipoise.steps.rules import guarded as guarded
from equipoise.steps.rules import linear as linear
from equipoise.steps.rules import restarted as restarted
from equipoise.steps.rules import sampled as sampled
from equipoise.steps.rules import sharp_accelerated as sharp_accelerated
from equipoise.steps.rules import sharp_linear as sharp_linear
from equipoise.steps.rules import sublinear as sublinear
