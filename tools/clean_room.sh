#!/usr/bin/env bash
# The two commands of the README on a fresh machine: a Debian root made by debootstrap.
#
#   tools/clean_room.sh [--short] [--base DIR] [ROOM...]
#
# ROOM: no-compiler, compiler, dockerfile; all, if none is named. --short runs only some of the tests in them;
# --base keeps the bare Debian in DIR for the next time. Needs root, debootstrap and the right to mount: where one
# is missing it says so in one line and ends with 77.
#
# Everything runs in mount and process namespaces of its own: when it ends, however it ends, the kernel unmounts
# what was mounted and kills what was started.
set -euo pipefail

pass_over() {
  echo "clean room: passed over, $1"
  exit 77
}

[ "$(uname -s)" = Linux ] || pass_over "it needs Linux"
[ "$(id -u)" = 0 ] || pass_over "it needs root"
command -v debootstrap >/dev/null || pass_over "debootstrap is not installed"
isolated=(unshare --mount --pid --fork --kill-child --mount-proc --propagation private)
"${isolated[@]}" mount -t tmpfs none /mnt 2>/dev/null || pass_over "it has no right to mount"

cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/keyfence-clean-room-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
"${isolated[@]}" python3 -m tools.clean_room --work "$work" "$@"
