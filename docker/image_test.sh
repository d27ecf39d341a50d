#!/usr/bin/env bash
# Builds every target of the Dockerfile and runs it; the first failure ends with its exit code.
#
#   make image-test                       with Docker, if one answers; else with buildah
#   ENGINE=docker docker/image_test.sh    on the base image that the Dockerfile names
#   ENGINE=buildah docker/image_test.sh   without a daemon and without a registry: the base is made of
#                                         Debian's packages by debootstrap. As root; needs buildah,
#                                         debootstrap and iproute2
#   FLAVOUR=cpu docker/image_test.sh      PyTorch without CUDA (default: cuda, which runs on a CPU too);
#                                         NAME takes docker/requirements-NAME.lock, for example a copy
#                                         with the checksum of a wheel of one's own
#   TARGETS="runtime annotate test"       which to build and try; detectron2 is one more, with
#                                         BUILD_ARGS for its Dockerfile. annotate is tried alone, and
#                                         by compose_test.py with PostgreSQL as compose.yaml says
#   PIP_CONF=pip.conf PIP_MOUNTS="/wheels /etc/ssl/certs"
#                                         a mirror of the package index, a folder of wheels, a
#                                         certificate; folders are mounted while buildah builds
#   BUILD_ARGS="CREATED=..."              further build arguments
#   WORK=/var/tmp/haystack-image-test     layers and results; 30 GB for cuda
#   KEEP=1                                leave the images and the results for a look
#   BUILD=no                              try the images of an earlier run with KEEP=1
#   RESULTS=FOLDER                        of an earlier run with KEEP=1: TARGETS=annotate needs the
#                                         campaign that the runtime made there
#
# What a buildah run does not show: python:3.11-slim as the base and postgres:17 as the database (a
# Debian 12 of the same Python, and its PostgreSQL 15, stand in), the GPU (docker/gpu_test.sh), and what
# docker/compose_test.py lists.
set -euo pipefail
cd "$(dirname "$0")/.."
FLAVOUR=${FLAVOUR:-cuda}
TARGETS=${TARGETS:-runtime annotate test}
WORK=${WORK:-/var/tmp/haystack-image-test}
ENGINE=${ENGINE:-$(docker info >/dev/null 2>&1 && echo docker || echo buildah)}
PIP_CONF=${PIP_CONF:-/dev/null}
ANYBODY=23456:23456 # whoever starts a container is unknown in it
mkdir -p "$WORK"
exec 9>"$WORK/lock"
flock --nonblock 9 || { echo "another run works in $WORK; name another folder as WORK" >&2; exit 1; }
results=${RESULTS:-$(mktemp -d "$WORK/results.XXXXXX")}
background=
network=

step() { printf '\n== %d s: %s\n' "$SECONDS" "$*" >&2; }
fail() { echo "FAILED: $*" >&2 && exit 1; }
image() { echo "localhost/haystack:$FLAVOUR-$1"; }

# Buildah keeps all it makes in WORK; Docker's images are the machine's own.
buildah() {
  BUILDAH_ISOLATION=chroot TMPDIR=$WORK command buildah --root "$WORK/storage" --runroot "$WORK/run" \
    --storage-driver "${STORAGE_DRIVER:-overlay}" "$@"
}

end() {
  local status=$?
  [ -z "$background" ] || kill -TERM -- "-$background" 2>/dev/null || true
  [ -z "$network" ] || kill "$network" 2>/dev/null || true
  if [ "$ENGINE" = buildah ]; then
    buildah rm --all >/dev/null 2>&1 || true
    [ -n "${KEEP:-}" ] || buildah rmi --all --force >/dev/null 2>&1 || true
  elif [ -z "${KEEP:-}" ]; then
    for target in $TARGETS; do docker rmi "$(image "$target")" >/dev/null 2>&1 || true; done
  fi
  [ -n "${KEEP:-}" ] || rm -rf "$results"
  exit $status
}
trap end EXIT

base_image() {
  local name=localhost/haystack-base:bookworm container
  if ! buildah inspect --type image "$name" >/dev/null 2>&1; then
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$WORK/base" \
      "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$WORK/debootstrap.log"
    rm -rf "$WORK"/base/var/cache/apt/archives/*.deb
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$WORK/base" / >/dev/null
    buildah commit --quiet --rm "$container" "$name" >/dev/null
    rm -rf "$WORK/base"
  fi
  echo "$name"
}

# Debian's PostgreSQL, which takes what compose.yaml tells Docker's official image. Connections by
# network need the password, from this machine as well: here that is where the service's come from.
database_image() {
  local name=localhost/haystack-database:bookworm container
  if ! buildah inspect --type image "$name" >/dev/null 2>&1; then
    cat >"$WORK/database-entry" <<'ENTRY'
#!/bin/sh
set -e
if [ "$(id -u)" = 0 ]; then
  install -d -o postgres -m 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0"
fi
if ! [ -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --encoding=UTF8 \
    --auth-local=trust --auth-host=scram-sha-256
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl --wait --options="-c listen_addresses=" start
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --wait stop
fi
exec postgres -c listen_addresses='*'
ENTRY
    container=$(buildah from --pull=never "$base")
    buildah run "$container" -- sh -ec 'mkdir -p /etc/postgresql-common
      echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
      apt-get update
      apt-get install -y --no-install-recommends postgresql
      install -d -o postgres /var/run/postgresql' >"$WORK/database.log" 2>&1
    buildah copy --quiet --chmod 755 "$container" "$WORK/database-entry" /usr/local/bin/entry >/dev/null
    buildah config --entrypoint '["entry"]' --env PGDATA=/var/lib/postgresql/data \
      --env PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit --quiet --rm "$container" "$name" >/dev/null
  fi
  echo "$name"
}

build() {
  local target=$1 file=Dockerfile options=() argument folder
  [ "$target" != detectron2 ] || file=Dockerfile.detectron2
  for argument in ${BUILD_ARGS:-}; do options+=(--build-arg "$argument"); done
  options+=(
    --file "docker/$file" --target "$target" --tag "$(image "$target")"
    --build-arg HAYSTACK_IMAGE="$(image runtime)"
    --build-arg FLAVOUR="$FLAVOUR" --build-arg COMMIT="$commit" --secret "id=pip,src=$PIP_CONF"
  )
  if [ "$ENGINE" = docker ]; then
    docker build "${options[@]}" .
    return
  fi
  for folder in ${PIP_MOUNTS:-}; do options+=(--volume "$folder:$folder:ro"); done
  # Docker's format keeps SHELL and HEALTHCHECK, which the OCI's has no place for.
  buildah build --pull=never --layers --format docker --build-arg BASE_IMAGE="$base" "${options[@]}" .
}

# CONFIG_OF IMAGE KEY: a text or a list of the image's configuration, one word a line.
config_of() {
  local python='import json, sys
value = json.load(sys.stdin)
value = value["Docker"]["config"] if "Docker" in value else value
for key in sys.argv[1].split("."): value = value.get(key) or {}
print(*([value] if isinstance(value, str) else value), sep="\n")'
  if [ "$ENGINE" = docker ]; then
    docker image inspect --format '{{json .Config}}' "$1" | python3 -c "$python" "$2"
  else
    buildah inspect --type image "$1" | python3 -c "$python" "$2"
  fi
}

# RUN_IN TARGET COMMAND...: in a new container as a user that the image does not know, with the
# results' folder as /work; as `docker run` would, an empty entrypoint in ENTRYPOINT runs it bare.
run_in() {
  local target=$1 container entrypoint=()
  shift
  if [ "$ENGINE" = docker ]; then
    docker run --rm --interactive --network none ${BARE:+--entrypoint ""} --user "$ANYBODY" \
      -v "$results:/work" -v "$results/images:$results/images:ro" \
      --read-only --tmpfs /tmp "$(image "$target")" "$@"
    return
  fi
  [ -n "${BARE:-}" ] || mapfile -t entrypoint < <(config_of "$(image "$target")" Entrypoint)
  container=$(buildah from --pull=never "$(image "$target")")
  buildah run --user "$ANYBODY" --volume "$results:/work" \
    --volume "$results/images:$results/images:ro" "$container" -- "${entrypoint[@]}" "$@"
  buildah rm "$container" >/dev/null
}

runtime_works() {
  step "the image: its user, its packages, what it may not do"
  local default
  default=$(config_of "$(image runtime)" User)
  [[ $default =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || fail "the image's user is '$default', not a number"
  # shellcheck disable=SC2016  # expanded in the container
  BARE=1 run_in runtime sh -c 'test "$(id -u)" = 23456 && ! touch /opt/haystack/x 2>/dev/null' \
    || fail "/opt/haystack can be written to"
  BARE=1 run_in runtime python -c '
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions()}))' >"$results/installed.json"
  python3 docker/compare_installed.py "docker/requirements-$FLAVOUR.lock" "$results/installed.json"
  mkdir -p dist # for make sbom
  # shellcheck disable=SC2016  # names of dpkg-query's
  BARE=1 run_in runtime dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n' \
    >"dist/debian-$FLAVOUR.txt"
  run_in runtime doctor

  step "a campaign on psg-mini, in a mounted folder"
  run_in runtime train train/frequency_psg_mini --out frequency
  run_in runtime embed campaign --config pipeline/demo source.images="$results/images"
  run_in runtime cluster campaign
  run_in runtime segment campaign segment.annotations=psg-mini
  run_in runtime score campaign score.model=frequency score.statistics=psg-mini
  run_in runtime propose campaign propose.limit=5

  step "evaluate and bench, on mounted folders"
  run_in runtime predict psg-mini --split test --model frequency --out P.parquet
  run_in runtime evaluate --annotations psg-mini --predictions P.parquet --out result.json
  run_in runtime evaluate --annotations psg-mini --predictions P.parquet --out again.json
  cmp "$results/result.json" "$results/again.json" || fail "the same question has two answers"
  run_in runtime bench psg_mini_predcls --baseline --out bench
  python3 - "$results" "$commit" "docker/requirements-$FLAVOUR.lock" <<'CHECK'
import hashlib, json, pathlib, sys
folder, commit, lock = sys.argv[1:]
(found,) = pathlib.Path(folder, "bench").glob("*.json")
for path in (pathlib.Path(folder, "result.json"), found):
    content = json.loads(path.read_text())
    environment = content.get("run", content)["environment"]
    assert environment["commit"] == commit, (path, environment)
    assert environment["lock_sha256"] == hashlib.sha256(open(lock, "rb").read()).hexdigest(), path
    assert environment["base_image"], path
CHECK
}

# Whoever has no link gets the page that asks for one, and no question.
STRANGER='
from urllib.error import HTTPError
from urllib.request import urlopen
try:
    urlopen("http://127.0.0.1:8765/api/next")
except HTTPError as error:
    raise SystemExit(0 if error.code == 401 else str(error))
raise SystemExit("a question was given to nobody")'

annotate_works() {
  step "the annotation service, until its health check is content"
  [ -d "$results/campaign" ] || fail "the target annotate is tried on the campaign of the target runtime"
  rm -rf "$results/work"
  cp -r "$results/campaign" "$results/work"
  chown -R "$ANYBODY" "$results/work" 2>/dev/null || chmod -R a+rwX "$results/work"
  run_in annotate annotators add work ana >"$results/link"
  grep -q 'login#token=' "$results/link" || fail "no link to log in by"
  if [ "$ENGINE" = docker ]; then
    local container
    container=$(docker run --detach --user "$ANYBODY" -v "$results/work:/work" \
      -v "$results/images:$results/images:ro" -p 127.0.0.1::8765 \
      --read-only --tmpfs /tmp "$(image annotate)")
    for _ in $(seq 60); do
      [ "$(docker inspect --format '{{.State.Health.Status}}' "$container")" != healthy ] || break
      sleep 2
    done
    docker logs "$container" >&2
    [ "$(docker inspect --format '{{.State.Health.Status}}' "$container")" = healthy ] \
      || fail "the service does not become healthy"
    docker exec "$container" python -c "$STRANGER" || fail "strangers are let in"
    docker stop "$container" >/dev/null
    [ "$(docker inspect --format '{{.State.ExitCode}}' "$container")" = 0 ] || fail "it ends badly"
    docker rm "$container" >/dev/null
    return
  fi
  local words health container healthy=
  mapfile -t words < <(config_of "$(image annotate)" Entrypoint; config_of "$(image annotate)" Cmd)
  mapfile -t health < <(config_of "$(image annotate)" Healthcheck.Test)
  [ "${health[0]}" = CMD ] || fail "the image has no health check"
  container=$(buildah from --pull=never "$(image annotate)")
  export -f buildah
  export WORK
  # A network of its own: the port is the image's, whatever else this machine serves.
  unshare --net bash -c 'ip link set lo up; exec sleep 900' &
  network=$!
  sleep 1
  # shellcheck disable=SC2016  # expanded in the container
  setsid nsenter --net=/proc/$network/ns/net bash -c 'buildah "$@"' - \
    run --user "$ANYBODY" --volume "$results/work:/work" \
    --volume "$results/images:$results/images:ro" "$container" -- \
    sh -c 'echo $$ >/work/pid; exec "$@"' sh "${words[@]}" >"$results/service.log" 2>&1 &
  background=$!
  for _ in $(seq 60); do
    kill -0 $background 2>/dev/null || { cat "$results/service.log" >&2; fail "the service ended"; }
    if nsenter --net=/proc/$network/ns/net bash -c 'buildah "$@"' - run --user "$ANYBODY" \
      "$container" -- "${health[@]:1}" 2>/dev/null; then
      healthy=1 && break
    fi
    sleep 2
  done
  cat "$results/service.log" >&2
  [ -n "$healthy" ] || fail "the service does not become healthy"
  nsenter --net=/proc/$network/ns/net bash -c 'buildah "$@"' - run --user "$ANYBODY" "$container" -- \
    python -c "$STRANGER" || fail "strangers are let in"
  # Not buildah, which would kill what it runs: to the process that an engine would tell.
  kill -TERM "$(cat "$results/work/pid")"
  wait $background || fail "the service ends with exit code $?"
  background=
  kill $network
  network=
  grep -q stopped "$results/service.log" || fail "SIGTERM does not end it: $(cat "$results/service.log")"
}

compose_works() {
  step "the services of compose.yaml, together"
  if [ "$ENGINE" = docker ]; then
    python3 docker/compose_test.py docker "$results" "$(image annotate)"
    return
  fi
  local database
  database=$(database_image)
  BARE=1 run_in annotate python -c 'import json, sys, yaml
json.dump(yaml.safe_load(sys.stdin), sys.stdout)' <docker/compose.yaml >"$results/compose.json"
  export -f buildah
  export WORK
  # A network of its own: the ports are the services', whatever else this machine serves. Bash, the
  # first process, reaps what was killed: PostgreSQL does not start while its old process is there.
  unshare --net --pid --fork --kill-child --mount-proc bash -c 'ip link set lo up && "$@"; exit $?' - \
    python3 docker/compose_test.py buildah "$results" "$(image annotate)" \
    --declared "$results/compose.json" --database "$database"
}

test_works() {
  step "the fast part of the test suite, in the image"
  mapfile -t words < <(config_of "$(image test)" Cmd)
  run_in test "${words[@]}"
}

detectron2_works() {
  step "a picture, segmented by a panoptic FPN of detectron2 with random weights"
  BARE=1 run_in detectron2 python - <<'MODEL'
import torch
from detectron2 import model_zoo
from detectron2.modeling import build_model

config = model_zoo.get_config("COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml")
config.MODEL.DEVICE = "cpu"
config.MODEL.WEIGHTS = ""
config.INPUT.MIN_SIZE_TEST = 320
torch.manual_seed(0)
torch.save({"model": build_model(config).state_dict()}, "random.pth")
with open("panoptic.yaml", "w") as stream:
    stream.write(config.dump())
MODEL
  local picture=/opt/haystack/lib/python3.11/site-packages/haystack/data/psg_mini/images/000000000071.jpg
  run_in detectron2 train train/frequency_psg_mini --out counted
  run_in detectron2 predict $picture --segmenter detectron2 config=panoptic.yaml \
    weights=random.pth --model counted --out graphs
  [ -n "$(ls "$results"/graphs/panoptic/*.png)" ] || fail "no segments were written"
}

commit=$(git rev-parse HEAD 2>/dev/null || echo "")
mkdir -p "$results/images"
cp haystack/data/psg_mini/images/* "$results/images"
chmod -R a+rX "$results/images"
chown "$ANYBODY" "$results" 2>/dev/null || chmod 777 "$results"
base=
if [ "$ENGINE" = buildah ]; then
  step "the base image"
  base=$(base_image)
fi
for target in $TARGETS; do
  [ "${BUILD:-yes}" = yes ] || continue
  step "build $target ($FLAVOUR, $ENGINE)"
  build "$target"
done
for target in $TARGETS; do
  "${target}_works"
  [ "$target" != annotate ] || compose_works
done
step "all of $TARGETS ($FLAVOUR, $ENGINE) works"
