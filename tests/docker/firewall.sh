#!/usr/bin/env bash
# What a Docker engine changes in the network's filters, and how that is taken back.
#
#   tests/docker/firewall.sh save FOLDER       before the engine starts: note what there is
#   tests/docker/firewall.sh restore FOLDER    after its end: remove what has come since
#
# Removed are chains called DOCKER… and rules that name one of them or a bridge of Docker's, unless
# they were there before; the policy of FORWARD and ip_forward become what they were. Nothing else.
set -euo pipefail

folder=$2/firewall
forward=${IP_FORWARD_FILE:-/proc/sys/net/ipv4/ip_forward}
dockers='(DOCKER|docker0|br-[0-9a-f]{12})'

save() {
    local tool
    mkdir -p "$folder"
    cp "$forward" "$folder/ip_forward"
    for tool in iptables ip6tables; do "$tool-save" >"$folder/$tool" 2>/dev/null || true; done
}

restore() {
    local tool
    for tool in iptables ip6tables; do
        [[ -e $folder/$tool ]] || continue
        { "$tool-save" 2>/dev/null || true; } | remove "$tool" "$folder/$tool"
    done
    if [[ -e $folder/ip_forward ]]; then cat "$folder/ip_forward" >"$forward"; fi
}

# Reads the rules of now: first the rules go, then the chains, which must be empty by then.
remove() {
    local tool=$1 before=$2 table='' line
    local -a words chains=()
    while IFS= read -r line; do
        case $line in
        '*'*) table=${line#\*} ;;
        ':FORWARD DROP'*)
            if ! grep -q '^:FORWARD DROP' "$before"; then "$tool" -P FORWARD ACCEPT; fi ;;
        ':DOCKER'*)
            words=($line)
            was_there "${words[0]} " || chains+=("$table ${words[0]#:}") ;;
        '-A '*)
            if [[ $line =~ $dockers ]] && ! was_there "$line"; then
                words=($line)
                "$tool" -t "$table" -D "${words[@]:1}"
            fi ;;
        esac
    done
    for line in "${chains[@]}"; do "$tool" -t "${line% *}" -X "${line#* }"; done
}

# A line, or the beginning of one, of the same table as it was before.
was_there() {
    awk -v table="*$table" -v line="$1" '
        /^\*/ { inside = $0 == table }
        inside && index($0, line) == 1 { found = 1 }
        END { exit !found }' "$before"
}

"$1"
