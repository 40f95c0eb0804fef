#!/usr/bin/env bash
# A Docker engine for tests/docker where there is none: Debian, root, apt; no image can be pulled.
#
#   tests/docker/engine.sh up FOLDER      start it; FOLDER/settings says how to reach and use it
#   tests/docker/engine.sh down FOLDER    stop it and remove FOLDER
#
# The one base image is made by mmdebstrap and has Python and Redis. Inside it pip installs from a
# folder of wheels that this machine's pip has downloaded, served on the bridge's address: whatever
# this machine installs from, the images can too. Everything else lies in FOLDER.
# The images' layers are built beforehand too, unless BATON_TEST_COLD_BUILD is set. Compose 2 is put
# beside docker-compose 1.29 where it can be had. `down` takes back what the engine did to the network.
# An engine that answers already is left alone, and takes its base images from its registry.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$2
base=baton-test-base:1
wheels_port=8417
packages=(docker.io docker-compose iproute2 iptables mmdebstrap python3-pip)

say() { printf 'docker: %s\n' "$*" >&2; }
die() { say "$*"; exit 3; }

up() {
    mkdir -p "$folder"
    if docker info >/dev/null 2>&1; then
        say "an engine answers already"
        touch "$folder/settings"
        return
    fi
    # shellcheck disable=SC1091
    . /etc/os-release
    [[ $(id -u) == 0 ]] || die "no engine answers, and only root can start one"
    [[ ${ID:-} == debian && -n ${VERSION_CODENAME:-} ]] || die "no engine answers, and this is no Debian"
    in_memory
    install_packages
    tests/docker/firewall.sh save "$folder"
    start_engine
    tests/docker/compose2.sh "$folder/compose2" >"$folder/compose2.path" 2>"$folder/compose2.log" &
    local fetching=$!
    timeout 180 mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,redis-server \
        --customize-hook='chroot "$1" install -d -o redis -g redis /data' \
        "$VERSION_CODENAME" "$folder/base.tar" &
    local making=$!
    download_wheels
    wait "$fetching" || say "compose 2 cannot be had: its test is skipped"
    wait "$making" || die "the base image could not be made"
    serve_wheels
    build_images
    say "an engine and a base image are ready after $SECONDS s"
}

# Images are many small files, written once and soon removed: where memory is ample they need no disk.
in_memory() {
    local free_kb
    free_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    if ((free_kb > 14 * 1024 * 1024)); then
        mount -t tmpfs -o size=8g,mode=700 tmpfs "$folder" || say "memory cannot be mounted; on disk"
    fi
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && return
    timeout 60 apt-get update -q || die "the list of packages could not be fetched"
    timeout 180 apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=60 \
        "${packages[@]}" || die "${packages[*]} could not be installed"
}

start_engine() {
    export DOCKER_HOST=unix://$folder/docker.sock
    setsid dockerd --host "$DOCKER_HOST" --data-root "$folder/data" --exec-root "$folder/exec" \
        --pidfile "$folder/dockerd.pid" >"$folder/dockerd.log" 2>&1 </dev/null &
    # It answers in a second or two; there is nothing to wait on but its answer.
    for _ in $(seq 150); do
        if docker info >/dev/null 2>&1; then return; fi
        kill -0 $! 2>/dev/null || break
        sleep 0.2
    done
    tail -n 5 "$folder/dockerd.log" >&2
    die "the engine did not start"
}

# By the system's Python: it is the base image's, so both want the same wheels.
download_wheels() {
    /usr/bin/python3 deploy/images/requirements.py worker |
        sed -e '/^triton==/d' -e 's/^torch==.*/&+cpu/' >"$folder/requirements.txt"
    timeout 180 /usr/bin/python3 -m pip download -q --only-binary :all: -d "$folder/wheels" \
        -r "$folder/requirements.txt" 'setuptools>=80' || die "the wheels could not be downloaded"
}

serve_wheels() {
    local address
    address=$(ip -4 -o addr show docker0 | awk '{ sub("/.*", "", $4); print $4 }')
    [[ -n $address ]] || die "the engine's bridge has no address"
    setsid /usr/bin/python3 -m http.server --directory "$folder/wheels" --bind "$address" \
        "$wheels_port" >"$folder/wheels.log" 2>&1 </dev/null &
    echo $! >"$folder/wheels.pid"
    timeout 60 docker import --change "ENV PIP_NO_INDEX=1 PIP_TRUSTED_HOST=$address \
        PIP_FIND_LINKS=http://$address:$wheels_port/" "$folder/base.tar" "$base" >/dev/null ||
        die "the base image could not be imported"
    rm "$folder/base.tar"
    {
        echo "DOCKER_HOST=$DOCKER_HOST"
        for name in COORDINATOR_BASE_IMAGE WORKER_BASE_IMAGE REDIS_IMAGE; do echo "$name=$base"; done
        echo "BATON_TEST_COMPOSE_2=$(<"$folder/compose2.path")"
    } >"$folder/settings.part"
}

# The tests build the images too, and find these layers: while they run the cores are theirs.
build_images() {
    if [[ -z ${BATON_TEST_COLD_BUILD:-} ]]; then
        for image in coordinator worker; do
            timeout 240 docker build -q -f "deploy/images/$image.Dockerfile" \
                --build-arg "BASE_IMAGE=$base" --build-arg VARIANT=cpu . 2>&1 &
        done
        for _ in coordinator worker; do wait -n || say "no image: the tests will say why"; done
    fi
    mv "$folder/settings.part" "$folder/settings"
}

down() {
    export DOCKER_HOST=unix://$folder/docker.sock
    if [[ -e $folder/dockerd.pid ]]; then
        docker ps -aq | xargs -r timeout 20 docker rm -f >/dev/null || true
        timeout 20 docker network prune -f >/dev/null || true
        engine=$(<"$folder/dockerd.pid")
        kill "$engine" || true
        timeout 30 tail --pid="$engine" -f /dev/null || kill -9 "$engine"
        ip link delete docker0 || true
        tests/docker/firewall.sh restore "$folder" || say "rules of the engine are left in iptables"
    fi
    if [[ -e $folder/wheels.pid ]]; then kill "$(<"$folder/wheels.pid")" || true; fi
    awk -v under="$folder" 'index($2, under) == 1 { print $2 }' /proc/mounts | tac |
        xargs -r umount -l
    rm -rf "$folder"
}

"$1"
