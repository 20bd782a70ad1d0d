#!/usr/bin/env bash
# On a machine with a GPU: the tests marked gpu, then profile and tune of two unmodified jobs.
# $OUT gets the documents; PYTHON is the interpreter with torch, timm and transformers.
# Parts by name (all without): test, profile, tune-resnet50, tune-gpt2.
set -u
cd "$(dirname "$0")/../.."
OUT=${OUT:-docs/results/gpu}; PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}" XDG_DATA_HOME=${XDG_DATA_HOME:-$(mktemp -d)} PYTHONUNBUFFERED=1 TERM=dumb
tune() { "$PYTHON" -m aiak_tune "$@"; }
parts=" ${*:-test profile tune-resnet50 tune-gpt2} "
if [[ $parts == *" test "* ]]; then
  "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu tests 2>&1 | tee "$OUT/pytest.log" | tail -40
fi
for job in resnet50 gpt2; do
  command=("$PYTHON" benchmarks/gpu/jobs/$job.py)
  if [[ $parts == *" profile "* ]]; then
    tune profile --json "$OUT/$job.profile.json" -- "${command[@]}" 2>&1 | tee "$OUT/$job.log" | tail -45
  fi
  if [[ $parts == *" tune-$job "* ]]; then
    tune tune --trials 6 --plan "$OUT/$job.plan.json" --json "$OUT/$job.tuning.json" \
      -- "${command[@]}" 2>&1 | tee -a "$OUT/$job.log" | tail -60
  fi
done
