#!/bin/sh
# Run a command in a network namespace that has nothing but loopback, where the system allows it.
#
# iroh's port mapper sends multicast on every bind and has no switch, and a test run has no business on the network anyway.
# Where namespaces are not permitted (macOS, hardened hosts) this says so once and runs the command as it is.
#
#   tools/loopback.sh COMMAND [ARGUMENT...]        PYTHON chooses the interpreter used where `ip` is missing
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
loopback_up="ip link set lo up 2>/dev/null || '${PYTHON:-python3}' '$here/loopback_up.py'"

if command -v unshare >/dev/null 2>&1 && unshare -rn sh -c "$loopback_up" >/dev/null 2>&1; then
    exec unshare -rn sh -c "{ $loopback_up; } && exec \"\$@\"" sh "$@"
fi

echo "note: no loopback-only network namespace on this system; running on the network as it is" >&2
exec "$@"
