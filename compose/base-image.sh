#!/usr/bin/env bash
# Makes base images for Dockerfile where no registry of images can be reached: from Debian
# packages, and for the build image from the Rust toolchain of this machine.
#
#   compose/base-image.sh run     an image to run in: a minimal Debian
#   compose/base-image.sh build   an image to build in: with a C++ compiler and Rust
#
#   compose/base-image.sh name run|build     only says what the image is called
#
# Prints the image's name. An image that is there is left alone, unless FORCE=1.
# SUITE is Debian's release: by default this machine's own, so that what was built here runs
# there too. MIRROR is where packages come from, if not from debootstrap's default.
# Needs Docker, debootstrap and root.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${SUITE:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
if [ ! -e "/usr/share/debootstrap/scripts/$suite" ]; then suite=bookworm; fi
rust=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)

die() {
    echo "base-image.sh: $*" >&2
    exit 1
}

# debootstrap leaves its mounts behind when it is interrupted; rm must not walk into them.
cleanup() {
    local mount
    for mount in "$root/proc" "$root/sys"; do
        if mountpoint -q "$mount"; then umount -l "$mount"; fi
    done
    rm -rf --one-file-system "$root"
}

# install PACKAGES: a minimal Debian with these (comma separated) in $root.
install() {
    local log=$root.log
    # Unquoted: no argument at all where there is no mirror or nothing to include.
    if ! debootstrap --variant=minbase ${1:+"--include=$1"} "$suite" "$root" ${MIRROR:+"$MIRROR"} \
        >"$log" 2>&1; then
        tail -n 20 "$log" "$root/debootstrap/debootstrap.log" >&2 || true
        rm -f "$log"
        die "debootstrap failed"
    fi
    rm -f "$log"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*
    rm -rf "$root"/usr/share/man/* "$root"/usr/share/locale/*
    find "$root/usr/share/doc" -type f ! -name copyright -delete
}

# The toolchain that this project is built with here; Debian's own is too old.
add_rust() {
    local found sysroot
    found=$(rustc --version) || die "needs Rust $rust"
    case $found in "rustc $rust "*) ;; *) die "needs Rust $rust, and finds $found" ;; esac
    sysroot=$(rustc --print sysroot)
    # Without documentation, sources and other targets, which are most of its size.
    tar -C "$sysroot" -c --exclude=./lib/rustlib/src --exclude='./lib/rustlib/*/analysis' \
        ./bin ./lib ./libexec | tar -C "$root/usr/local" -x --no-same-owner
    # Whom this machine trusts, the image trusts: a proxy before the registry, for example.
    if [ -r /etc/ssl/certs/ca-certificates.crt ]; then
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    fi
}

only_name=
if [ "${1:-}" = name ]; then
    only_name=1
    shift
fi
case ${1:-} in
    run) image=kvgrid-base-run:$suite ;;
    build) image=kvgrid-base-build:$suite-rust-$rust ;;
    *) die "say run or build" ;;
esac
if [ -n "$only_name" ] ||
    { [ "${FORCE:-}" != 1 ] && docker image inspect "$image" >/dev/null 2>&1; }; then
    echo "$image"
    exit 0
fi
[ "$(id -u)" = 0 ] || die "debootstrap needs root"
command -v debootstrap >/dev/null || die "needs debootstrap (Debian's package of that name)"

# Not in /tmp by default, which may be in memory or refuse devices.
root=$(mktemp -d "${TMPDIR:-/var/tmp}/kvgrid-base.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT TERM
chmod 755 "$root"
case $1 in
    run) install "" ;;
    build)
        install ca-certificates,g++
        add_rust
        ;;
esac
tar -C "$root" --one-file-system -c . | docker import --change 'CMD ["bash"]' - "$image" >/dev/null
echo "$image"
