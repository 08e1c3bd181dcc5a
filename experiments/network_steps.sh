#!/bin/sh
# Chosen step sizes of networks beside seven by hand, on a GPU, in at most nine minutes:
#     sh experiments/network_steps.sh DATA [TABLES]
#
# DATA holds data sets as `equipoise data list` names them: fashion-mnist (Debian's package dataset-fashion-mnist),
# cifar-10 (cifar-10-batches-py), shakespeare (a .txt per play). One that is not there is left out. Parts share the
# GPU, and what each has printed goes to the file TABLES as it ends.
data=${1:?the folder of data sets}
tables=${2:-/dev/stdout}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
logs=$(mktemp -d)
began=$(date +%s)
run() { # MODEL DATA_SET METHODS and more
    [ "$2" = digits ] || [ -e "$data/$2" ] || return 0
    left=$((525 - $(date +%s) + began))
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
small='{"width": 8, "blocks": 1}'
for method in $both; do
    run cnn fashion-mnist $method --max-size 300 --seeds 3 &
    run resnet cifar-10 $method --max-size 300 --seeds 2 --rounds 60 --model-options '{"width": 16, "blocks": 1}' &
done
{
    run mlp fashion-mnist "$both" --max-size 300 --seeds 5
    run cnn digits fedavg --clients 10 --seeds 10
} &
{
    run gru shakespeare "$both" --natural --max-size 500 --seeds 1 --rounds 60
    run resnet digits "$both" --clients 10 --seeds 3 --model-options "$small" --grid
} &
wait
rm -r "$logs"
