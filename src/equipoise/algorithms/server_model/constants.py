"""The numbers in the server of `scaffpd_model`: nobody has to set them, and each says why it is what it is.

    python experiments/server_model_constants.py      what every one of them does at half and at twice its value

docs/mathematics/scaffpd_model.md has that table, and the steps in which they stand. Read them as `constants.NAME`, so
that the command can change them.
"""

# What a trial says of the model: judge.py

NOT_QUADRATIC = 1e-4  # a loss this far off the trapezoid rule, relative to its explained change, is not quadratic
LOSS_ROUNDING = 64  # units of rounding in a loss that are not taken for it: sums over rows lose about two digits
TRAPEZOID_ROUNDING = 16  # units of rounding up to which a loss is its trapezoid; beyond, it says something of its own
LOSSES_AVERAGED = 20  # of those that are: more would remember an error for longer than a run takes
GRADIENT_ROUNDING = 4  # units of rounding in the difference of two gradients
FORGET = 0.2  # images this far off what is seen are of another place: only the newest direction stays
WEIGHT_SEEN = 1e-3  # of clients heard at both ends; of less, how far images are off is not judged
LEAST_SCALE, MOST_SCALE = 0.2, 5.0  # of images, when a loss is not quadratic: one look is not enough for more
LEAST_WEIGHT = 1e-9  # clients of no weight take part in the mean, so that there is one where all weight is elsewhere
ASSUMED = 0.1  # of the weighted smoothness: the curvature across D when nobody was heard at both ends
NEW, MOST_NEW = 1e-6, 0.1  # of a direction: less repeats the rounding of others; more is asked where not quadratic
STOOD_STILL = 1e-28  # |s|^2 relative to |x|^2: the move is rounding, and teaches no direction
SHORTEST = 1e-6  # how far the trial went along d, in steps d: keeps its curvature finite
LEAST_CURVATURE, MOST_CURVATURE = 1e-3, 1e3  # kappa, in curvatures of the local steps; beyond, it was rounding
POOR, GOOD = 0.25, 0.5  # of the predicted decrease: below the model is damped, above it is freed, as in trust regions
FIRST_DAMPING, MOST_DAMPING = 0.25, 64.0  # nu: the first that is felt; with the most, local steps are about 1/L again
MORE_DAMPING, LESS_DAMPING = 2.0, 3.0  # factors: back sooner than forth, for most failures have passed after one
NO_DAMPING = 0.05  # anything smaller is set to zero
LOST_TRIAL, LOST_DAMPING = 4.0, 1.0  # nobody could say anything of a trial, so it went much too far: factor, least

# The curvature inside the directions: directions.py

FLAT = 1e-10  # the least curvature, relative to the smallest L_i ...
FLAT_BESIDE = 1e-8  # ... and to the mean curvature of the client that bends most, whose rounding it is
MOST_UNCERTAIN = 1e3  # U: a direction of which this little is known is as good as unknown

# The next trial: trial.py

NO_DESCENT = 1e-3  # cosine of c and d: local steps that go across c are noise, and -c is taken instead
UNEXPLAINED = 0.1  # of kappa: the curvature along d that D cannot explain is at least this
SHORTEST_TRIAL = 1e-2  # steps along d at least, or d teaches nothing
IN_A_ROW = 3  # trials that were taken back before the gradient mapping, which cannot fail
PREDICTION_ROUNDING = 50  # units of rounding in the robust value: a smaller decrease counts as zero
SLOPE_ROUNDING = 1e3  # and as often the slope of one that is done

# Whom to hear: sampling.py

AGAIN = 0.25  # of a cohort is heard at the centre too, which measures the newest direction
BY_CHANCE = 0.3  # of a cohort, so that nobody is forgotten
CHANCE_OF_AGE = 2.0  # a client's chance grows with this power of the rounds since it was heard
BY_RISK = 0.5  # of those who take local steps: not the largest weights, but who could be most wrong
RISK_ROUNDING = 64 * 2.2e-16  # of the losses: rounding alone can raise the robust value by this much
WEIGHT_OF_NONE = 1e-3  # of an equal weight: what a client of weight zero has beside the others

# A client: scaffpd_model.py

CURVATURE_ROUNDING = 1e4  # units of rounding in its gradient above which local steps measure its L_i

# The small saddle problems: saddle.py

SOLVED, MOST_ITERATIONS = 1e-11, 50  # a residual relative to the losses; it takes 10 to 20 iterations
USELESS = 1e-2  # a residual beyond which the answer is not used
CHOLESKY = 1e-14  # relative: what is added to a matrix that may be singular but for rounding
REGULAR = 1e-13  # added to curvatures of weights and directions, for the same reason
NEGLIGIBLE = 1e-12  # relative to p: a weight this small is as good as none
COUPLING = 1e-3  # what the weights' coupling adds to the scale of the losses
LOSS_DIGITS = 1e-14  # of the losses: their scale where all of them are equal
CENTRING, LATE_CENTRING = 0.5, 1e-6  # at least: before the slopes vanish, products that vanish leave no room to move
BOUNDARY = 0.99  # of the way to the next bound
STUCK = 1e-10  # a step this short is the last
