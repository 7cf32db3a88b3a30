#!/usr/bin/env bash
# One night on a runner of GitHub Actions: `kvknee nightly`, its summary, its verdict.
#
#   KVKNEE          the kvknee to run
#   KVKNEE_SUITE    the suite file
#   KVKNEE_NIGHTLY  folder outside the checkout for history, results, models and logs
#
# Ends with 0 where nothing got worse, and where the night could not be judged (with a warning:
# nobody is to be woken by it); with 1 for a regression, 3 when the job failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${KVKNEE:?}" "${KVKNEE_SUITE:?}" "${KVKNEE_NIGHTLY:?}"
output=${GITHUB_OUTPUT:-/dev/null}
summary=${GITHUB_STEP_SUMMARY:-/dev/null}
results=$KVKNEE_NIGHTLY/results

annotate() { # kind, title, text
    echo "::$1 title=$2::$3"
}

reports() {
    find "$results/nightly" -mindepth 2 -maxdepth 2 -name night.md | sort
}

# bad input ends with the same code as "could not judge", so it is looked for first
if ! "$KVKNEE" nightly "$KVKNEE_SUITE" --plan; then
    annotate error "kvknee: bad suite" "$KVKNEE_SUITE cannot be run; see the log of this step"
    exit 3
fi

mkdir -p "$results/nightly" || exit 3
before=$(reports)
# a cancelled job is told so by a signal, which must reach kvknee: it stops its servers
"$KVKNEE" nightly "$KVKNEE_SUITE" --results-dir "$results" --home "$KVKNEE_NIGHTLY/home" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' INT TERM
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    # a signal ended the wait, not kvknee
    wait "$child"
    code=$?
done

night=$(comm -13 <(echo "$before") <(reports) | tail -n 1)
if [ -n "$night" ]; then
    echo "folder=$(dirname "$night")" >>"$output"
    # a summary may have 1 MiB
    head -c 1000000 "$night" >>"$summary"
elif [ "$code" = 1 ]; then
    # a regression has a report; this is a program that broke
    code=3
fi

case $code in
0) ;;
1) annotate error "kvknee: regression" "a gated figure got worse; the summary says which" ;;
2)
    annotate warning "kvknee: could not judge" "no verdict tonight; the summary says why"
    code=0
    ;;
*)
    annotate error "kvknee: the job failed" "exit code $code; see the log of this step"
    code=3
    ;;
esac
exit "$code"
