#!/usr/bin/env bash
# Runs the README's two commands on a fresh machine: a Debian root made by debootstrap.
#
#   tools/clean_room.sh [--short] [--base DIR] [ROOM...]
#
# ROOM: no-compiler, compiler, wheel or dockerfile; default: all. --short runs only some of the tests. --base keeps the
# bare Debian in DIR for the next run. Needs root, debootstrap and the right to mount. If one of them is missing, it
# prints one line and exits with 77.
#
# Everything runs in separate mount and process namespaces. When the script ends, for any reason, the kernel removes
# its mounts and kills its processes.
set -euo pipefail

skip() {
  echo "clean room: skipped, $1"
  exit 77
}

[ "$(uname -s)" = Linux ] || skip "it needs Linux"
[ "$(id -u)" = 0 ] || skip "it needs root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
isolated=(unshare --mount --pid --fork --kill-child --mount-proc --propagation private)
"${isolated[@]}" mount -t tmpfs none /mnt 2>/dev/null || skip "it has no right to mount"

cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/keyfence-clean-room-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
"${isolated[@]}" python3 -m tools.clean_room --work "$work" "$@"
