#!/usr/bin/env bash
# Builds the CUDA image and computes on a GPU in it: for Docker with NVIDIA's container toolkit.
#
#   docker/gpu_test.sh                   build, then check
#   IMAGE=haystack:cuda docker/gpu_test.sh    check an image that is there
#
# Passes if the GPU computes, a model trains on it twice to the same bytes and is measured as on the
# CPU, and the results name the GPU, its driver, the commit and the image.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${IMAGE:-}" ]; then
  IMAGE=haystack:gpu-test
  docker build -f docker/Dockerfile --target runtime -t "$IMAGE" \
    --build-arg COMMIT="$(git rev-parse HEAD)" .
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
digest=$(docker image inspect --format '{{.Id}}' "$IMAGE")

haystack() {
  docker run --rm --gpus all --network none --user "$(id -u):$(id -g)" -v "$work:/work" \
    --read-only --tmpfs /tmp -e HAYSTACK_IMAGE_DIGEST="$digest" "$IMAGE" "$@"
}

haystack doctor --json | tee "$work/doctor.json"
grep -q '"cuda:0' "$work/doctor.json" || { echo "FAILED: no GPU is seen" >&2; exit 1; }
haystack embed campaign --config pipeline/demo embed.device=cuda \
  source.images=/opt/haystack/lib/python3.11/site-packages/haystack/data/psg_mini/images
haystack cluster campaign
for run in one two; do
  haystack train train/vctree_psg_mini --out $run device=cuda steps=50
done
cmp "$work/one/model.safetensors" "$work/two/model.safetensors" \
  || { echo "FAILED: the same training on the same GPU gave two models" >&2; exit 1; }
for device in cuda cpu; do
  haystack bench psg_mini_predcls --model one --device $device --out bench-$device
done
python3 - "$work" "$digest" <<'CHECK'
import json, pathlib, sys
folder, digest = pathlib.Path(sys.argv[1]), sys.argv[2]
cuda, cpu = (json.loads((folder / f"bench-{d}" / "result.json").read_text()) for d in ("cuda", "cpu"))
environment = cuda["environment"]
assert environment["gpu"]["name"] and environment["gpu"]["driver"], environment["gpu"]
assert environment["image_digest"] == digest and environment["commit"], environment
metrics = [r["report"]["metrics"] for r in (cuda, cpu)]
assert metrics[0].keys() == metrics[1].keys()
for name, value in metrics[0].items():
    other = metrics[1][name]
    assert value == other or abs(value - other) < 0.01, (name, value, other)
noted = json.loads((folder / "one" / "environment.json").read_text())["environments"]
assert [e["gpu"]["name"] for e in noted] == [environment["gpu"]["name"]]
print(f"works on {environment['gpu']['name']}, driver {environment['gpu']['driver']}")
CHECK
