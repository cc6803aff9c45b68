#!/usr/bin/env bash
# Plays a conversation on the grid of compose.yaml, from images built for it, and takes it all
# down again: is what one edge has warmed found by the other, and what becomes of the
# conversation when its site stops?
#
#   compose/verify.sh [--binaries DIR]
#
# With --binaries the images get the programs in DIR, else they are built from source, which
# takes minutes and leaves the images behind for next time. Base images are, in this order,
# what KVGRID_RUN_IMAGE and KVGRID_BUILD_IMAGE name; what base-image.sh has made; what can be
# pulled; what base-image.sh makes now, which needs root and debootstrap.
# Needs Docker, `docker compose` or docker-compose, and otherwise only what Debian's base has.
# Exits 0 only if everything was as it should be.
set -euo pipefail
cd "$(dirname "$0")/.."
# Also kept as 8 and 9, for the last words: a signal may come while 1 and 2 go to a file.
exec </dev/null 8>&1 9>&2

edges="eu-1 ap-1"
sites="fra iad icn"
programs="kvgrid-relay kvgrid-edge kvgrid-certs kvgrid-emulator"
# Seconds that the grid may take to come to a state, or to answer.
patience=60

say() { printf '%s\n' "$*"; }
die() {
    printf 'verify.sh: %s\n' "$*" >&2
    exit 1
}

# until_true WHAT COMMAND...: waits until the command succeeds, and dies if it never does.
until_true() {
    local what=$1 end=$((SECONDS + patience))
    shift
    until "$@"; do
        if [ $SECONDS -ge $end ]; then die "after $patience s still not: $what"; fi
        sleep 0.1
    done
}

# ---- images

# The image of a release that has at least this machine's glibc, which the programs built
# here need; for other distributions the Dockerfile's default must do.
native_image() {
    local id version
    id=$(sed -n 's/^ID=//p' /etc/os-release)
    version=$(sed -n 's/^VERSION_ID="\?\([^"]*\)"\?$/\1/p' /etc/os-release)
    case $id in
        debian) echo "debian:$version-slim" ;;
        ubuntu) echo "ubuntu:$version" ;;
        *) echo debian:bookworm-slim ;;
    esac
}

# base_image run|build PUBLIC-NAME: the name of a base image that is here now.
base_image() {
    local own
    own=$(compose/base-image.sh name "$1")
    if docker image inspect "$own" >/dev/null 2>&1; then
        echo "$own"
    elif docker image inspect "$2" >/dev/null 2>&1 ||
        timeout 300 docker pull -q "$2" >/dev/null 2>&1; then
        echo "$2"
    else
        say "making $own from packages" >&2
        compose/base-image.sh "$1"
    fi
}

# An image that has nothing but the programs, in /binaries.
import_binaries() {
    local program
    for program in $programs; do
        [ -x "$1/$program" ] || die "$1 has no $program"
    done
    # Unquoted: the programs' names.
    # shellcheck disable=SC2086
    tar -C "$1" --transform 's,^,binaries/,' -c $programs | docker import - "$2" >/dev/null
}

images() {
    local begin=$SECONDS
    if [ -n "$binaries" ]; then
        export KVGRID_TAG=$project KVGRID_LEFTOVER_OF=$project
        export KVGRID_BINARIES=kvgrid-binaries:$project
        KVGRID_RUN_IMAGE=${KVGRID_RUN_IMAGE:-$(base_image run "$(native_image)")}
        # Nothing is built, and the classic builder wants some image in this place.
        KVGRID_BUILD_IMAGE=$KVGRID_RUN_IMAGE
        import_binaries "$binaries" "$KVGRID_BINARIES"
    else
        KVGRID_RUN_IMAGE=${KVGRID_RUN_IMAGE:-$(base_image run debian:bookworm-slim)}
        KVGRID_BUILD_IMAGE=${KVGRID_BUILD_IMAGE:-$(base_image build rust:1.95-bookworm)}
    fi
    export KVGRID_RUN_IMAGE KVGRID_BUILD_IMAGE
    say "building images, see $work/build.log"
    # One service of each image.
    if ! compose build certs fra fra-relay eu-1 >"$work/build.log" 2>&1; then
        tail -n 40 "$work/build.log" >&2
        die "the images can't be built"
    fi
    say "images built on $KVGRID_RUN_IMAGE ($((SECONDS - begin)) s)"
}

# ---- the grid

compose() { "${compose_command[@]}" -f compose/compose.yaml "$@"; }

# What the edge knows of the grid, one site a line.
known() {
    compose exec -T "$1" kvgrid-http GET 127.0.0.1:9440/kvgrid/v1/sites |
        sed 's/{"site":/\n&/g'
}

# Whether the edge sees the site, with a filter that is up to date.
sees() {
    local line
    line=$(known "$1" 2>/dev/null | grep -F "{\"site\":\"$2\"") || return 1
    [[ $line == *'"alive":true'* && $line == *'"usable":true'* && $line == *'"state":"live"'* ]]
}

# Whether the edge knows the site to have at least so many blocks.
knows_blocks() {
    local blocks
    blocks=$(known "$1" 2>/dev/null | grep -F "{\"site\":\"$2\"" |
        grep -o '"blocks":[0-9]*' | head -n 1)
    [ -n "$blocks" ] && [ "${blocks#*:}" -ge "$3" ]
}

healthy() {
    local state
    state=$(docker inspect -f '{{.State.Health.Status}}' "$(compose ps -q "$1")")
    [ "$state" = healthy ]
}

until_whole() {
    local edge site
    for edge in $edges; do
        for site in $sites; do until_true "$edge sees $site" sees "$edge" "$site"; done
    done
}

# Who may read a node's key: mode, owner, name.
keys() { compose exec -T "$1" stat -c '%a %u %n' /etc/kvgrid/identity/node-key.pem; }

fingerprint() { compose exec -T "$1" sha256sum /etc/kvgrid/identity/node.pem; }

start() {
    local begin=$SECONDS edge site
    compose up -d >"$work/up.log" 2>&1 || {
        cat "$work/up.log" >&2
        die "the grid can't be started"
    }
    for edge in $edges; do
        until_true "$edge has its port" port_of "$edge"
        until_true "$edge is healthy" healthy "$edge"
    done
    for site in $sites; do until_true "$site-relay is healthy" healthy "$site-relay"; done
    until_whole
    say "three sites, seen by both edges ($((SECONDS - begin)) s)"
}

port_of() {
    local address
    address=$(compose port "$1" 8080) && port[$1]=${address##*:} && [ "${port[$1]}" -gt 0 ]
}

# ---- the conversation

# text WORDS: words that no other run says in this order.
text() {
    local words=(river stone cloud lantern orchard signal copper winter harbour violet)
    local said=() count
    for ((count = 0; count < $1; count++)); do said+=("${words[RANDOM % 10]}"); done
    printf '%s' "${said[*]}"
}

# number NAME ANSWER: a number of the answer's usage; 0 if it isn't told.
number() {
    local found
    found=$(grep -o "\"$1\":[0-9]*" <<<"$2") || found=:0
    echo "${found##*:}"
}

# turn EDGE: asks the next question; sets site, overlap, prompt, cached.
turn() {
    local url answer body content begin taken
    turns=$((turns + 1))
    messages+=",{\"role\":\"user\",\"content\":\"$(text 12)\"}"
    body="{\"model\":\"tiny-chat\",\"max_tokens\":24,\"messages\":[$messages]}"
    url=127.0.0.1:${port[$1]}/v1/chat/completions
    begin=$(date +%s%3N)
    answer=$(printf '%s' "$body" | timeout "$patience" compose/image/http.sh -i POST "$url") ||
        die "turn $turns, asked of $1: ${answer:-no answer}"
    taken=$(($(date +%s%3N) - begin))
    site=$(sed -n 's/^x-kvgrid-site: //p' <<<"$answer")
    overlap=$(sed -n 's/^x-kvgrid-overlap-tokens: //p' <<<"$answer")
    prompt=$(number prompt_tokens "$answer")
    cached=$(number cached_tokens "$answer")
    # As it stands in the answer's JSON, escapes and all, it goes into the next request's.
    content=$(grep -oE '"content":"([^"\\]|\\.)*"' <<<"$answer") ||
        die "turn $turns, asked of $1, has no words: $answer"
    messages+=",{\"role\":\"assistant\",$content}"
    printf '  %4d  %-6s %-4s  %7d of %7d  %6d ms\n' \
        "$turns" "$1" "$site" "$overlap" "$prompt" "$taken"
    [ "$overlap" = "$cached" ] ||
        wrong "turn $turns: the edge expected $overlap tokens to be cached, the site had $cached"
}

# Waits until the other edge knows what the last turn left at its site.
until_told() {
    until_true "$1 knows what $site has" knows_blocks "$1" "$site" $((prompt / 16))
}

wrong() {
    printf '  WRONG  %s\n' "$*"
    failures=$((failures + 1))
}

# expect WHAT COMMAND...: says whether it is so.
expect() {
    local what=$1
    shift
    if "$@"; then say "  ok     $what"; else wrong "$what"; fi
}

# All but what the last turn added, and the block that an engine always computes again.
warm() { [ "$overlap" -gt $((prompt - 100)) ]; }

converse() {
    local home
    messages="{\"role\":\"system\",\"content\":\"$(text 4000)\"}"
    say "  turn  asked  site   cached of  prompt"
    turn eu-1
    home=$site
    expect "turn 1 is warm nowhere" [ "$overlap" = 0 ]
    until_told ap-1
    turn ap-1
    expect "ap-1 finds $home, which eu-1 has warmed" [ "$site" = "$home" ]
    expect "with the conversation so far" warm
    until_told eu-1
    turn eu-1
    expect "eu-1 stays at $home" [ "$site" = "$home" ]
    expect "with the conversation so far" warm

    say "        $home is stopped"
    compose stop -t 5 "$home-relay" "$home" >/dev/null 2>&1
    turn eu-1
    expect "the conversation goes on elsewhere" [ "$site" != "$home" ]
    until_told ap-1
    turn ap-1
    expect "and is warm there" warm

    say "        $home is started again"
    compose up -d >/dev/null 2>&1
    until_whole
    say "  ok     both edges see it again"
}

# ---- from the beginning to the end

cleanup() {
    local status=$? left
    trap '' INT TERM
    trap - EXIT
    exec >&8 2>&9
    if [ $status -ne 0 ] && [ -s "$work/up.log" ]; then
        compose ps || true
        compose logs --no-color --tail=30 || true
    fi
    compose down -v -t 5 --remove-orphans >"$work/down.log" 2>&1 || cat "$work/down.log"
    if [ -n "$binaries" ]; then
        docker image ls -q --filter "reference=kvgrid-*:$project" | sort -u |
            xargs -r docker image rm -f >/dev/null || true
        docker image prune -f --filter "label=kvgrid.leftover-of=$project" >/dev/null || true
    fi
    left=$(
        docker ps -aq --filter "label=com.docker.compose.project=$project"
        docker network ls -q --filter "label=com.docker.compose.project=$project"
        docker volume ls -q --filter "label=com.docker.compose.project=$project"
    ) || true
    if [ -n "$left" ]; then
        say "  WRONG  left behind: ${left//$'\n'/ }"
        if [ $status -eq 0 ]; then status=1; fi
    fi
    rm -rf "$work"
    say "taken down ($SECONDS s in all)"
    exit $status
}

binaries=
case ${1:-} in
    "") ;;
    --binaries) binaries=${2:?--binaries needs a directory} ;;
    *) die "usage: compose/verify.sh [--binaries DIR]" ;;
esac
if docker compose version >/dev/null 2>&1; then
    compose_command=(docker compose)
elif docker-compose version >/dev/null 2>&1; then
    compose_command=(docker-compose)
else
    die "needs docker compose or docker-compose"
fi
docker info >/dev/null 2>&1 || die "no Docker engine answers"

project=kvgrid-verify-$$-$RANDOM
# Any free port, and nothing that a grid in use has.
export COMPOSE_PROJECT_NAME=$project KVGRID_EU_PORT=0 KVGRID_AP_PORT=0
work=$(mktemp -d)
declare -A port=()
failures=0 turns=0
trap cleanup EXIT
trap 'exit 130' INT TERM

images
start
expect "nodes don't run as root" [ "$(compose exec -T fra-relay id -u)" != 0 ]
expect "a node's key is for its user alone" \
    [ "$(keys fra-relay)" = "600 10001 /etc/kvgrid/identity/node-key.pem" ]
before=$(fingerprint iad-relay)
converse
expect "certificates are kept when the grid is started again" [ "$(fingerprint iad-relay)" = "$before" ]
[ $failures -eq 0 ] || die "$failures things were not as they should be"
