#!/usr/bin/env bash
# The demo: start both servers, load them level by level, stop them. Exit code of the load.
#
# A stack that was up before is used as it is, and stays up; with other settings than the
# demo's, `kvknee up` says so.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
model=${MODEL:-tiny}
paged_port=${PAGED_PORT:-8000}
contiguous_port=${CONTIGUOUS_PORT:-8001}
read -ra up_flags <<<"${UP_FLAGS:-}"
read -ra run_flags <<<"${RUN_FLAGS:-}"

# Budgets that put both knees between the listed levels; bf16 KV bytes, blocks of 128 tokens.
case $model in
    tiny)
        # paged: 128 blocks - 1 null block, 5 per request of 640 tokens: 25 at once
        # static: 16 MiB / (2,048 tokens x 1,024 B): 8 at once
        up=(--kv-budget 16MiB --max-model-len 2048)
        load=(--prompt-tokens 512 --output-tokens 128 --min-requests 20,100,100,100)
        ;;
    smollm2)
        # paged: 45 blocks - 1 null block, 2 per request of 160 tokens: 22 at once
        # static: 128 MiB / (512 tokens x 23,040 B): 11 at once
        up=(--kv-budget 128MiB --max-model-len 512)
        load=(--prompt-tokens 128 --output-tokens 32 --min-requests 10,20,40,40)
        ;;
    *)
        up=()
        load=(--prompt-tokens 128 --output-tokens 32 --min-requests 10,20,40,40)
        ;;
esac

was_up=no
if "$bin/kvknee" status >/dev/null 2>&1; then
    was_up=yes
fi
finish() {
    code=$?
    trap - EXIT
    if [ "$was_up" = no ]; then
        "$bin/kvknee" down || code=1
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$bin/kvknee" up --model "$model" --paged-port "$paged_port" --contiguous-port "$contiguous_port" \
    "${up[@]}" "${up_flags[@]}"
"$bin/locust" -f scenarios/concurrency.py --headless --only-summary --levels 1,4,16,32 \
    --backends "paged=http://127.0.0.1:$paged_port,contiguous=http://127.0.0.1:$contiguous_port" \
    "${load[@]}" "${run_flags[@]}"
