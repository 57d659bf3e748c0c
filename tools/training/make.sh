#!/usr/bin/env bash
# Makes the tiny model as it is shipped: trains variants side by side on one GPU, keeps the best by
# the validation files, trains heads on it, keeps the best, measures, writes the card.
#
#     bash tools/training/make.sh OUT [SOURCE]
#
# OUT gets the files of sample_engine/model/tiny and make.log; SOURCE is a library folder (default:
# the library of this Python). About MINUTES + HEAD_MINUTES + 1 minutes. From the environment, for
# trials: PYTHON, MINUTES, HEAD_MINUTES, DROPOUTS, VARIATIONS, TRAIN_FLAGS, HEAD_FLAGS, TEST_FLAGS.
set -euo pipefail
out=$1
source_flags=()
if [ $# -gt 1 ]; then source_flags=(--source "$2"); fi
python=${PYTHON:-python3}
work=$(mktemp -d)
mkdir -p "$out"

run() { "$python" -m "tools.training.$1" "${source_flags[@]}" "${@:2}"; }

# Not all of them have to succeed.
finish() { for job in "$@"; do wait "$job" || true; done; }

best() { # the folder whose JSON file $1 names the lowest value, of the folders after it
  "$python" - "$@" <<'PYTHON'
import json, pathlib, sys
name, *folders = sys.argv[1:]
paths = [path for folder in folders if (path := pathlib.Path(folder, name)).is_file()]
if not paths:
    sys.exit(f"no variant wrote its {name}: see the log")
print(min(paths, key=lambda path: json.loads(path.read_text())["outcome"]["best"]).parent)
PYTHON
}

{
  models=() heads=() jobs=()
  for dropout in ${DROPOUTS:-0.0 0.05}; do
    models+=("$work/model-$dropout")
    # shellcheck disable=SC2086
    run train --minutes "${MINUTES:-4}" --dropout "$dropout" --out "$work/model-$dropout" \
      ${TRAIN_FLAGS:-} 2>&1 | sed "s/^/[dropout $dropout] /" &
    jobs+=($!)
  done
  finish "${jobs[@]}"
  model=$(best train.json "${models[@]}")
  echo "chosen: $model"
  cp "$model"/{config.json,model.safetensors,train.json} "$out"

  jobs=()
  for variation in ${VARIATIONS:-0.0 1.0}; do
    heads+=("$work/head-$variation")
    # shellcheck disable=SC2086
    run train_eagle --minutes "${HEAD_MINUTES:-3}" --variation "$variation" --model "$model" \
      --out "$work/head-$variation" ${HEAD_FLAGS:-} 2>&1 | sed "s/^/[variation $variation] /" &
    jobs+=($!)
  done
  finish "${jobs[@]}"
  head=$(best train_eagle.json "${heads[@]}")
  echo "chosen: $head"
  cp "$head"/{eagle.safetensors,train_eagle.json} "$out"

  # shellcheck disable=SC2086
  run evaluate --model "$out" --card ${TEST_FLAGS:-} 2>&1
  rm -r "$work" "$out/train.json" "$out/train_eagle.json"  # evaluation.json holds both
  ls -l "$out"
} 2>&1 | tee "$out/make.log"
