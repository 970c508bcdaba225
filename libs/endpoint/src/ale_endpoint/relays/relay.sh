#!/bin/sh
# Listens on a loopback port and hands each connection to a Unix socket: sh relay.sh SOCKET [PORT]
# For a sandbox without a network whose folders hold the socket of a model endpoint. Needs a POSIX shell and socat.
# An end of file is passed on in its own direction alone; SIGTERM ends the relay and every connection.
socket=$1 port=${2:-8600}

fail() { echo "relay: $1" >&2; exit 1; }
answers() { socat -u OPEN:/dev/null "$1" 2>/dev/null; }

# socat forks for each connection, and what it forked outlives it.
children() {
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    rest=${line##*) } pid=${line%% *}
    rest=${rest#* }
    [ "${rest%% *}" = "$1" ] && echo "$pid"
  done
}

stop() {
  kill -STOP "$listener" 2>/dev/null
  kill $(children "$listener") "$listener" 2>/dev/null
  kill -CONT "$listener" 2>/dev/null
  exit 0
}

[ -n "$socket" ] || fail "usage: relay.sh SOCKET [PORT]"
command -v socat >/dev/null || fail "socat is not installed; use the relay for Python or for Node."
answers "UNIX-CONNECT:$socket" || fail "No server answers at the Unix socket $socket; mount its folder into the sandbox."
answers "TCP:127.0.0.1:$port" && fail "The port $port of 127.0.0.1 is taken; name another one."

# -t: how long the second direction may go on after the first has ended.
socat -t 86400 "TCP-LISTEN:$port,bind=127.0.0.1,reuseaddr,fork,backlog=1024" "UNIX-CONNECT:$socket" &
listener=$!
trap stop TERM INT
until answers "TCP:127.0.0.1:$port"; do
  kill -0 "$listener" 2>/dev/null || fail "The port $port of 127.0.0.1 cannot be had; name another one."
  sleep 0.1
done
echo "listening on http://127.0.0.1:$port for $socket"
wait "$listener"
fail "socat has ended."
