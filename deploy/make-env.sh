#!/usr/bin/env bash
# Writes .env for docker-compose.yml: .env.example with fresh secrets and settings that suit this
# machine's GPUs. `deploy/make-env.sh [NAME=VALUE ...]`, e.g. MODEL_DIR=/models/x; `make env` passes
# ARGS on. An .env that exists is never changed. The last line has the command to go on with: that of
# the compose plugin, or of docker-compose where the plugin is not installed.
#
# Without a GPU, or with BATON_DEVICE=cpu, the settings of deploy/cpu.env apply. One GPU gets a
# colocated worker, more get a prefill and a decode pool as `baton up` would divide them.
set -euo pipefail
umask 077
cd "$(dirname "$0")/.."

declare -A value=()

die() { printf 'error: %s\n' "$*" >&2; exit 2; }
random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

read_arguments() {
    local argument name
    for argument; do
        # An argument without a name may be a secret, so it is not shown.
        [[ $argument =~ ^[A-Z_]+= ]] || die "an argument is not NAME=VALUE"
        name=${argument%%=*}
        grep -q "^#\?$name=" .env.example || die "$name: is no setting of .env.example"
        [[ ${argument#*=} != *[\'$'\n']* ]] || die "$name: must have no quote and no line break"
        given[$name]=${argument#*=}
    done
}

num_gpus() {
    if [[ ${given[BATON_DEVICE]:-} == cpu ]] || ! command -v nvidia-smi >/dev/null; then
        echo 0
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true
    fi
}

# A quarter of the GPUs prefill, at least one; a single GPU does both.
set_pools() {
    local gpus=$1 prefill
    if ((gpus == 1)); then
        value[PREFILL_REPLICAS]=0 value[DECODE_REPLICAS]=0 value[COLOCATED_REPLICAS]=1
        return
    fi
    prefill=$(((gpus + 2) / 4))
    ((prefill > 0)) || prefill=1
    value[PREFILL_REPLICAS]=$prefill value[DECODE_REPLICAS]=$((gpus - prefill))
}

# In a Hugging Face cache, mount the model's whole folder: a snapshot's links lead out of it.
set_model() {
    local folder=${given[MODEL_DIR]:-./models/tiny}
    [[ -d $folder ]] || die "MODEL_DIR: $folder is not a folder"
    folder=${folder%/}
    if [[ $folder == */models--*/snapshots/* ]]; then
        given[MODEL_SUBDIR]=snapshots/${folder##*/snapshots/}
        folder=${folder%/snapshots/*}
    fi
    given[MODEL_DIR]=$folder
}

compose() {
    if docker compose version >/dev/null 2>&1; then echo "docker compose"
    elif command -v docker-compose >/dev/null; then echo docker-compose
    fi
}

quoted() {
    if [[ $1 =~ ^[A-Za-z0-9_./:@%+=,-]*$ ]]; then printf '%s' "$1"; else printf "'%s'" "$1"; fi
}

write() {
    local line name
    while IFS= read -r line; do
        name=${line%%=*} name=${name#\#}
        if [[ $line =~ ^#?[A-Z_]+= && -v value[$name] ]]; then
            printf '%s=%s\n' "$name" "$(quoted "${value[$name]}")"
        else
            printf '%s\n' "$line"
        fi
    done <.env.example
}

declare -A given=()
[[ ! -e .env ]] || die ".env exists and is left as it is; edit it, or move it away first"
read_arguments "$@"
set_model
gpus=$(num_gpus)
if ((gpus)); then
    set_pools "$gpus"
elif [[ ${given[BATON_DEVICE]:-cpu} == cpu ]]; then
    while IFS='=' read -r name setting; do value[$name]=$setting; done < <(grep '^[A-Z_]*=' deploy/cpu.env)
fi
for name in REDIS_PASSWORD BATON_CHANNEL_SECRET GRAFANA_PASSWORD; do value[$name]=$(random 24); done
for name in "${!given[@]}"; do value[$name]=${given[$name]}; done
prefill=${value[PREFILL_REPLICAS]:-2} decode=${value[DECODE_REPLICAS]:-6} colocated=${value[COLOCATED_REPLICAS]:-0}
value[HOST_WORKERS]=${given[HOST_WORKERS]:-$((prefill + decode + colocated))}

part=$(mktemp .env.XXXXXX)
trap 'rm -f "$part"' EXIT
write >"$part"
# A link, unlike a move, fails if .env has been made meanwhile.
ln "$part" .env 2>/dev/null || die ".env exists and is left as it is; edit it, or move it away first"
echo ".env is written: $prefill prefill, $decode decode, $colocated colocated, on ${value[BATON_DEVICE]:-cuda}" \
    "($gpus GPUs found), model ${value[MODEL_DIR]}"
compose=$(compose)
[[ -n $compose ]] || echo "no compose was found here: install Docker with its compose plugin first"
echo "next: ${compose:-docker compose} up -d"
