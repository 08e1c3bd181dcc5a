#!/bin/sh
# Chosen step sizes of networks beside seven by hand, on a GPU, in at most eight minutes: sh experiments/network_steps.sh DATA
#
# DATA holds data sets as `equipoise data list` names them: fashion-mnist (Debian's package dataset-fashion-mnist),
# cifar-10 (cifar-10-batches-py), shakespeare (a .txt per play). One that is not there is left out.
data=${1:?the folder of data sets}
run() { timeout "$1" python experiments/network_steps.py "$2" "$3" --data "$data" $4 || echo "$2 on $3: not finished"; echo; }
[ -e "$data/fashion-mnist" ] && run 90 mlp fashion-mnist "--max-size 300 --seeds 5"
[ -e "$data/fashion-mnist" ] && run 150 cnn fashion-mnist "--max-size 300 --seeds 3"
[ -e "$data/cifar-10" ] && run 150 resnet cifar-10 "--max-size 500 --seeds 1 --rounds 60"
[ -e "$data/shakespeare" ] && run 90 gru shakespeare "--natural --max-size 500 --seeds 1 --rounds 60"
true
