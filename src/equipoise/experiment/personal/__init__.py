"""What every owner has of its own, beside the model of all.

models      own models of a run: tuned from the shared one, the envelope's, or the best of three, and their files
offers      the shared model, one tuned from it or an owner's own alone, chosen by folds of its own rows
own_parts   the parts of a model that owners keep: the federation's mean of them, and their file
alone       what each gets from a model of its own rows alone, to which joining is compared
baselines   the losses of such models on rows left out, which gains are measured from
paths       own models along a path of penalties, with all rows and without each fold
linear      the same where the model is linear in its inputs: all six together
fits        the least of a convex loss, by Newton's method
"""
