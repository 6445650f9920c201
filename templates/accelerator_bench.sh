#!/bin/bash
# Measures the package on a rented machine with a GPU or TPU:
#
#     bash accelerator_bench.sh cuda13 5 device.json
#
# The words are the extra of JAX for the device (cuda12, cuda13 or tpu), minutes, and the
# file of the results. To be run in a clone of the repository, with Python 3.11 or newer.
# The file is written after every measurement, so that a machine that is taken away
# leaves what it has measured.

set -euo pipefail

extra=${1:?"expected the extra of JAX for the device: cuda12, cuda13 or tpu"}
minutes=${2:-5}
file=${3:-device.json}

python3 -m venv .venv
.venv/bin/python -m pip install -q -e ".[experiments]" "jax[$extra]"
exec .venv/bin/python -m experiments.bench --accelerator \
  --max-minutes "$minutes" --out "$file"
