#!/usr/bin/env bash
# Writes the lock files of the images: exact versions and checksums, for CPython 3.11 on x86-64 Linux.
#
#   make lock                              newest versions that pyproject.toml and *.in allow
#   CPU_INDEX=URL docker/lock.sh           the CPU wheels of PyTorch from a mirror of their index
#   PYPI=URL docker/lock.sh                everything else from a mirror of PyPI
#
# Versions in the files stay as they are where they still fit: UPGRADE=1 lets them move.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-uv}
PYPI=${PYPI:-https://pypi.org/simple}
CPU_INDEX=${CPU_INDEX:-https://download.pytorch.org/whl/cpu}
EXTRAS=(--extra annotate --extra postgres --extra sweep --extra transformers --extra demo)

# FLAVOUR [OPTIONS...]: docker/requirements-FLAVOUR.lock from docker/requirements-FLAVOUR.in.
lock() {
  local out=docker/requirements-$1.lock
  shift
  "$UV" --quiet pip compile --no-config --generate-hashes --no-annotate ${UPGRADE:+--upgrade} \
    --custom-compile-command "make lock" --default-index "$PYPI" \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 "$@" --output-file "$out"
  echo "$out: $(grep -c == "$out") packages" >&2
}

lock build docker/requirements-build.in
# The extra demo asks for faiss-cpu, which faiss-gpu replaces.
lock cuda pyproject.toml docker/requirements-cuda.in -c docker/requirements-build.lock \
  "${EXTRAS[@]}" --extra gpu --no-emit-package faiss-cpu
# The index of PyTorch's makers serves two packages; what else it has is not asked for.
lock cpu pyproject.toml docker/requirements-cpu.in -c docker/requirements-build.lock \
  "${EXTRAS[@]}" --extra cpu --index "$CPU_INDEX" --index-strategy unsafe-best-match
# What lies in both images has one version in all.
lock test docker/requirements-test.in -c docker/requirements-cuda.lock
lock nvcc docker/requirements-nvcc.in -c docker/requirements-cuda.lock
# But setuptools, which must be older for detectron2.
lock detectron2 docker/requirements-detectron2.in \
  -c <(sed -n 's/ \\$//; /==/ { /^setuptools/! p }' docker/requirements-cuda.lock)
