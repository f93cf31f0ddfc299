#!/bin/sh
# Install a wheel into a fresh environment and use it from an empty directory: sh tests/wheel.sh dist/roundround-*.whl
set -eu
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
"${PYTHON:-python3}" -m venv "$empty/venv"
"$empty/venv/bin/python" -m pip install --quiet --constraint "$constraints" "$wheel"
"$empty/venv/bin/python" -c 'from importlib.resources import files
for name in ("py.typed", "pretrained/stories260k/LICENSE", "pretrained/stories260k/SOURCE.md",
             "report/page/page.css", "report/page/templates/page.html.j2"):
    assert (files("roundround") / name).is_file(), name'
mkdir "$empty/work"
cd "$empty/work"
export ROUNDROUND_CACHE="$empty/cache"
"$empty/venv/bin/roundround" list pe >pe.txt
grep -q p_rope_reversed pe.txt
directory=$("$empty/venv/bin/roundround" train model.d_model=16 model.d_mlp=24 model.n_layers=1 batch_size=2 \
    tokenizer=bytes validation_tokens=512 trainer.max_steps=2 logger=none trainer.devices=1 | tail -1)
test -f "$directory/checkpoints/best/model.safetensors"
test -f "$directory/report.html"
"$empty/venv/bin/roundround" eval run=last length=128,256 max_tokens=1024 logger=none | tail -1 >eval.txt
test -f "$(cat eval.txt)/figures/perplexity.svg"
HF_HUB_OFFLINE=1 "$empty/venv/bin/roundround" eval model=stories260k logger=none | tail -1 >own.txt
test -f "$(cat own.txt)/figures/perplexity.svg"
echo "the wheel works from an empty directory"
