#!/bin/sh
# A pipeline step for any CI system: run a command behind keyfence, and fail on new findings.
#
#   POLICY=policy.yaml SERVICE=shop gate.sh pytest -q
#
# The command finds Redis in REDIS_URL. Known findings are in $BASELINE; commit this file. To write it again:
#
#   keyfence gate "sqlite:///keyfence-reports/findings.db" --write-baseline keyfence-baseline.yaml
#
# Exit code: the command's, if it is not 0; else 0 nothing new, 1 new findings, 2 keyfence could not be used,
# 3 not known: no command reached Redis, for example.
set -eu

: "${POLICY:?name the policy file}" "${SERVICE:?name the service that the command is}"
baseline=${BASELINE:-keyfence-baseline.yaml}
reports=${REPORTS:-keyfence-reports}

mkdir -p "$reports"
rm -f "$reports"/findings.db*
store="sqlite:///$reports/findings.db"
known=
if [ -e "$baseline" ]; then known="--baseline=$baseline"; fi

code=0
keyfence exec --policy "$POLICY" --service "$SERVICE" --findings "$store" ${known:+"$known"} -- "$@" || code=$?

# The same answer as test results, which most CI systems show.
if [ -e "$reports/findings.db" ]; then
    keyfence gate "$store" ${known:+"$known"} --format junit >"$reports/keyfence.xml" || true
fi
exit "$code"
