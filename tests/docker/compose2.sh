#!/usr/bin/env bash
# Compose 2 beside Debian 12's docker-compose 1.29: `tests/docker/compose2.sh FOLDER` unpacks the next
# Debian's package there, from the mirror that apt uses already, and prints the path of the program.
# Nothing of the system changes, apt's own lists included.
set -euo pipefail
mkdir -p "$1"
cd "$1"

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
    "Codename: bookworm" | head -n 1)
[[ -n $mirror ]] || { echo "apt has no mirror of Debian 12" >&2; exit 1; }
mkdir -p lists/partial
echo "deb [signed-by=$keyring] $mirror trixie main" >sources.list
apt=(-q -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$PWD/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root)
timeout 60 apt-get update "${apt[@]}" >&2
timeout 60 apt-get download "${apt[@]}" docker-compose >&2
dpkg -x docker-compose_*.deb .
rm -rf lists docker-compose_*.deb
echo "$PWD/usr/libexec/docker/cli-plugins/docker-compose"
