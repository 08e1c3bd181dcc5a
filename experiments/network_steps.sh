#!/bin/sh
# Chosen step sizes of networks beside some by hand, on a GPU, in at most nine minutes:
#     sh experiments/network_steps.sh DATA TABLES
#     sh experiments/network_steps.sh DATA TABLES chosen
#
# The second leaves out those by hand and takes more seeds.
# DATA holds data sets as `equipoise data list` names them: fashion-mnist (Debian's package dataset-fashion-mnist),
# cifar-10 (cifar-10-batches-py), shakespeare (a .txt per play). One that is not there is left out. Parts share the
# GPU, and what each has printed goes to the file TABLES as it ends.
data=${1:?the folder of data sets}
tables=${2:?the file of tables}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
logs=$(mktemp -d)
began=$(date +%s)
run() { # MODEL DATA_SET METHODS and more
    [ "$2" = digits ] || [ -e "$data/$2" ] || return 0
    left=$((${LIMIT:-525} - $(date +%s) + began))
    [ $left -gt 5 ] || { echo "$*: not begun" >>"$tables"; return 0; }
    log=$(mktemp -p "$logs")
    model=$1 set=$2 methods=$3
    shift 3
    # shellcheck disable=SC2086 # several methods
    timeout $left "${PYTHON:-python}" experiments/network_steps.py "$model" "$set" --data "$data" --methods $methods \
        "$@" >"$log" 2>"$log.errors"
    code=$?
    { cat "$log"; [ $code -eq 0 ] || { echo "$model on $set, $methods: ended with $code"; tail -n 3 "$log.errors"; }; } \
        >>"$tables"
}
both="fedavg scaffpd_minibatch"
wide='{"width": 16, "blocks": 1}' small='{"width": 8, "blocks": 1}' talkative='{"min_characters": 15000}'
images="--max-size 300" text="--natural --max-size 500 --rounds 60"
if [ "$3" = chosen ]; then
    few="--seeds 4 --grid" some="--seeds 6 --grid" all="--seeds 10 --grid"
    pictures=$some words=$few many=$all
    run gru shakespeare fedavg $text --seeds 1 --grid &
    {
        run cnn digits "$both" --clients 10 $all
        run resnet digits "$both" --clients 10 --model-options "$small" $few
    } &
else
    pictures="--seeds 3 --grid 0.03 0.1 0.3 1" words="--seeds 3 --grid 0.3 1 3" many="--seeds 5"
fi
for method in $both; do
    run cnn fashion-mnist $method $images $many &
    run resnet cifar-10 $method $images --rounds 60 --model-options "$wide" $pictures &
    run gru shakespeare $method $text --options "$talkative" $words &
done
run mlp fashion-mnist "$both" $images --seeds 10 ${3:+--grid} &
wait
rm -r "$logs"
