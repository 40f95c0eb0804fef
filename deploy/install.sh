#!/usr/bin/env bash
# Installs the dependencies of pyproject.toml in .venv, in the versions of deploy/constraints.txt:
# `deploy/install.sh STAMP EXTRAS`, e.g. `deploy/install.sh .venv/.stamp-dev worker,redis-server,dev`.
# STAMP is touched only after success.
#
# PYTHON names the interpreter (default: the first suitable of python3.12 python3.11 python3.13 python3).
# uv installs, with pip's settings. Where uv cannot be had or cannot install, pip does, which takes
# three times as long.
#
# An interrupted run leaves .venv/.installing behind, and the next run starts over: a half
# written package looks like a whole one. If only a download failed, nothing was written, and the
# next run continues.
# CPU_TORCH_INDEX names another index with torch's CPU build. Without one, PyPI's torch is used.
# PIP_COMPILE=0 leaves it to the first import to compile a module.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=$1
extras=$2
venv=.venv
uv_version=0.13.9
tested=deploy/constraints.txt
torch=$(sed -nE 's/^torch==([0-9.]+)$/\1/p' $tested)
cpu_index=${CPU_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
fresh_after=(pyproject.toml "$tested" deploy/install.sh)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
    local name
    if [[ -n ${PYTHON:-} ]]; then
        suitable "$PYTHON" || die "PYTHON=$PYTHON is not Python 3.11 to 3.13"
        printf '%s' "$PYTHON"
        return
    fi
    for name in python3.12 python3.11 python3.13 python3; do
        if suitable "$name"; then printf '%s' "$name"; return; fi
    done
    die "no Python 3.11 to 3.13 found (tried python3.12, python3.11, python3.13, python3); install one or set PYTHON=/path/to/python"
}

make_venv() {
    local python
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments; install its venv package (Debian, Ubuntu: apt install python3-venv)"
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

install() { touch "$venv/.installing"; pip install "$@"; }

# A setting of pip, e.g. `pip_setting find-links`, by its files or its environment.
pip_setting() {
    local section
    for section in :env: install global; do
        sed -nE "s/^$section\.$1='(.*)'\$/\1/p" <<<"$pip_settings" | sed 's/\\n/ /g' | grep . && return
    done
    return 0
}

# Export a setting of uv, unless it has a value or is given none.
default() { [[ -n ${!1:-} || -z $2 ]] || export "$1=$2"; }

# uv reads none of pip's settings.
configure_uv() {
    local pip_settings
    pip_settings=$(pip config list 2>/dev/null || true)
    default UV_DEFAULT_INDEX "$(pip_setting index-url)"
    default UV_INDEX "$(pip_setting extra-index-url)"
    default UV_INDEX_STRATEGY unsafe-best-match
    default UV_FIND_LINKS "$(pip_setting find-links | tr -s ' ' ,)"
    default UV_CONSTRAINT "$(pip_setting constraint)"
    export UV_CONSTRAINT="$tested${UV_CONSTRAINT:+ $UV_CONSTRAINT}"
    default UV_INSECURE_HOST "$(pip_setting trusted-host)"
    default SSL_CERT_FILE "$(pip_setting cert)"
    default UV_COMPILE_BYTECODE "${PIP_COMPILE:-1}"
}

has_uv=
get_uv() {
    if install -qq --retries 0 --timeout 10 "uv==$uv_version" 2>/dev/null; then
        has_uv=1
        configure_uv
        return
    fi
    if wrote; then die "uv $uv_version was written in part; the next run starts over"; fi
    say "uv $uv_version cannot be had: going on with pip, which takes longer"
}

uv_install() {
    [[ -n $has_uv ]] || return 1
    touch "$venv/.installing"
    "$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" "$@"
}

# True if the last install began to write packages.
wrote() {
    local packages=("$venv"/lib/python*/site-packages)
    [[ $packages -nt $venv/.installing ]]
}

give_up() {
    if wrote; then die "$1 (see above); the next run starts over"; fi
    rm -f "$venv/.installing"
    die "$1 (see above); $venv is as it was, and the next run goes on there"
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# The CPU build is a tenth of the size, but not on PyPI. The first try is short, so that an index
# that cannot be reached does not delay an install whose wheel comes from elsewhere.
install_cpu_torch() {
    local installed
    installed=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true)
    [[ ${installed%%+*} == "$torch" ]] && return
    say "installing torch $torch, the CPU build (about 200 MB)"
    local wanted=(--no-deps "torch==$torch+cpu" --extra-index-url "$cpu_index")
    if [[ -n ${UV_FIND_LINKS:-} ]]; then
        uv_install --no-index "${wanted[@]:0:2}" 2>/dev/null && return
    fi
    UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=10 uv_install "${wanted[@]}" 2>/dev/null && return
    install "${wanted[@]}" --retries 0 --timeout 10 2>/dev/null ||
        install "${wanted[@]}" --retries 1 && return
    if wrote; then give_up "could not install torch"; fi
    say "$cpu_index has no torch $torch+cpu for this machine, or cannot be reached (see above):" \
        "going on with PyPI's build, which brings CUDA's libraries (about 3 GB); CPU_TORCH_INDEX" \
        "names another index"
}

up_to_date() {
    local source
    [[ -e $stamp && ! -e $venv/.installing ]] || return 1
    for source in "${fresh_after[@]}"; do [[ $stamp -nt $source ]] || return 1; done
}

# One install at a time. The lock is on this file itself, so no lock file is left.
exec 9<"$0"
if command -v flock >/dev/null; then flock 9; fi
up_to_date && exit 0

if [[ -e $venv/.installing ]]; then
    say "an earlier install was interrupted; starting over"
    make_venv
elif ! suitable "$venv/bin/python" || ! pip --version >/dev/null 2>&1; then
    make_venv
fi
touch "$venv/.installing"
get_uv
if has_gpu; then extras=$extras,gpu; else install_cpu_torch; fi
say "installing baton and what it needs ($extras)"
if ! uv_install -e ".[$extras]"; then
    if wrote; then give_up "could not install the dependencies"; fi
    [[ -z $has_uv ]] || say "uv could not install the dependencies (see above): pip tries"
    install -qq -c $tested -e ".[$extras]" || give_up "could not install the dependencies"
fi
rm -f "$venv/.installing"
touch "$stamp"
say "done in $SECONDS s"
