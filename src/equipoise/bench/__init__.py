"""Methods over federations whose owners exist: `equipoise bench`, docs/benchmark.md.

federations  which they are, and what a method may see of a split
methods      which methods there are: ours as settings of a run, and functions that fit a model
outside      such functions: each owner alone, and what sees all rows at once
flower       a Flower app as such a function
entries      what a method did on a split of a federation: the files that results are made of
run          runs what is not there yet
entering     what a method of somebody else has to fulfil
standings    all entries together: ranks, wins, ties and losses
page         tables, a picture and a page of them
"""
