#!/usr/bin/env bash
# Fetches newer servers than the installed ones, for tests/adversary and tests/commands.
#
#   tools/more_servers.sh
#
# The servers and the libraries that they need come from Debian, verified by apt:
#
#   trixie   Redis 8.0 and Valkey 8.1 of Debian 13
#   sid      the newest in Debian: Redis 8.6 of experimental, Valkey 9.1
#
# They are unpacked into ${XDG_CACHE_HOME:-~/.cache}/keyfence/servers. Nothing is installed, and the system's apt lists
# and caches do not change. Each server runs with the libc of its suite; tests.servers.all_server_binaries() finds
# them. KEYFENCE_DEBIAN_MIRROR replaces the mirror deb.debian.org. To fetch a suite again, remove its folder. A suite
# that cannot be fetched is skipped with one line; if all are skipped, the exit status is 77.
set -euo pipefail

skip() {
  echo "more servers: skipped, $1"
  exit 77
}

mirror=${KEYFENCE_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cache_home=${XDG_CACHE_HOME:-~/.cache} # works without HOME too, if XDG_CACHE_HOME is set
cache=$cache_home/keyfence/servers

[ "$(uname -sm)" = "Linux x86_64" ] || skip "it needs Linux on x86-64"
for tool in apt-get apt-cache apt-config dpkg-deb; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
[ -r $keyring ] || skip "debian-archive-keyring is not installed"

show() { # SUITE
  for server in redis valkey; do
    "$cache/$1/bin/$server-server" --version
  done
}

# Configures a private apt with its own sources, lists and caches, and an empty list of installed packages. From the
# machine's settings it takes only those for reaching a mirror, not those that run commands after apt.
configure_apt() { # SUITE...
  mkdir -p "$work"/{lists/partial,archives/partial,debs,new/root,new/bin}
  touch "$work/status"
  for suite in "$@"; do
    echo "deb [signed-by=$keyring] $mirror $suite main"
  done >"$work/sources.list"
  {
    apt-config dump | grep '^Acquire'
    cat <<END
Dir::State "$work"; Dir::State::lists "$work/lists"; Dir::State::status "$work/status";
Dir::Cache "$work"; Dir::Cache::archives "$work/archives";
Dir::Etc::main "/dev/null"; Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$work/sources.list"; Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64"; APT::Architectures { "amd64"; };
APT::Sandbox::User "$(id -un)"; APT::Update::Error-Mode "any";
Acquire::Retries "1"; Acquire::http::Timeout "20"; Acquire::https::Timeout "20";
END
  } >"$work/apt.conf"
  export APT_CONFIG=$work/apt.conf
}

attempt() { # WHAT COMMAND...
  timeout 300 "${@:2}" >"$work/log" 2>&1 || skip "$1: $(tail -n 1 "$work/log")"
}

# Prints the packages to fetch: the servers, their tools, and the libraries among their dependencies.
needed() {
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    redis-server valkey-server | grep -E '^(lib[a-z0-9]|zlib1g|(redis|valkey)-(server|tools)$)' | sort -u
}

# Fetches both servers into $cache/SUITE. Redis comes from the suite REDIS_FROM, if that is given.
fetch() ( # SUITE [REDIS_FROM]
  show "$1" 2>/dev/null && exit
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/fetching-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT TERM
  configure_apt "$@"
  attempt "apt-get update of $1" apt-get --quiet=2 update
  mapfile -t packages < <(needed)
  [ $# = 1 ] || packages=("${packages[@]/%redis-server/redis-server/$2}")
  [ $# = 1 ] || packages=("${packages[@]/%redis-tools/redis-tools/$2}")
  cd "$work/debs"
  attempt "apt-get download from $1" apt-get --quiet=2 download "${packages[@]}"
  for package in *.deb; do
    dpkg-deb --extract "$package" "$work/new/root"
  done
  for server in redis valkey; do
    cat >"$work/new/bin/$server-server" <<'END'
#!/bin/sh
# Runs Debian's server with the libc of its own suite, on any distribution.
root=$(dirname "$(dirname "$(readlink -f "$0")")")/root
exec "$root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" \
  --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/$(basename "$0")" "$@"
END
    chmod 755 "$work/new/bin/$server-server"
  done
  rm -rf "${cache:?}/$1"
  mv "$work/new" "$cache/$1"
  show "$1" 2>/dev/null || skip "the servers of Debian's $1 do not run on this machine"
)

status=77
for suite in "trixie" "sid experimental"; do
  # shellcheck disable=SC2086 # two words are two arguments
  if fetch $suite; then
    status=0
  fi
done
exit $status
