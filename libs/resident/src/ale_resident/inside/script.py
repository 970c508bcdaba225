"""What a persistent shell runs: text for bash, and for any shell that POSIX describes. Used by the resident, inside the sandbox.

1. The shell reads lines from its stdin, a pipe: `START` once, then a `GO` for each command. The command's text, and what else
   changes from one to the next, stands in a file in memory (descriptor 7), which is read in large pieces.
2. A command runs in the shell itself, with stdin empty, named pipes of its own as stdout and stderr, and without the shell's
   own descriptors. Then the shell tells of its end on descriptor 9 (`d`), keeps its state and tells of that (`s`).
3. State, for a shell that was ended by its command: bash writes it to a file beside the named pipes. Other shells cannot
   print their functions, so they keep a copy of themselves waiting, which takes over when it reads a line from 6.
4. The signal PWR means that time is up; it may come late, and means nothing then. Bash leaves what it is doing by a `break`,
   which keeps its table of jobs, except in a function, from which nothing but `exit` leads out. Others exit, and their copy
   takes over.

What is read here is parsed before any command can set aliases, or is quoted where it cannot be.
"""

from __future__ import annotations

START = b"\\command . /proc/self/fd/7\n"
GO = (
    rb'\command . /proc/self/fd/7; { \command eval "$__ale_b"; } 6<&- 7<&- 8<&- 9>&- </dev/null >|"$__ale_d/o" 2>|"$__ale_d/e"'
    b';\\command eval "$__ale_f"\n'
)
"""The redirections stand in no `eval`, so that they last until a command that ends the shell has had its last word."""

SETUP = rb"""
__ale_r() { return "$1"; }
__ale_o=0 __ale_u=0
__ale_b='__ale_o=$__ale_n __ale_u=1; for __ale_i in .; do if __ale_r "$__ale_s"; then \command eval "$__ale_c"; else \command eval "$__ale_c"; fi; done'
__ale_f='
\command printf "d %s %s %s\n" "$__ale_n" "$__ale_o" "$?" >&9
__ale_u=0 __ale_c=
__ale_save || :
\command printf "s %s\n" "$__ale_n" >&9
'
if [ -n "${BASH_VERSION-}" ]; then
  __ale_save() {
    {
      builtin printf 'builtin cd -- %q\n' "${PWD-.}"
      builtin umask -p
      builtin shopt -p extglob
      builtin declare -p
      builtin declare -f
      builtin declare -Fx
      builtin alias -p
      builtin shopt -p
      builtin set +o
      builtin printf 'set +e\n\n#whole\n'
    } >|"$__ale_d/s"
  } 2>/dev/null
  trap 'case $__ale_u${#FUNCNAME[@]} in 0*) ;; 10) break 999;; *) exit 124; esac' PWR
  trap '__ale_save || :' EXIT
  {
    [ -s /proc/self/fd/5 ] && . /proc/self/fd/5
    __ale_u=0
    shopt -s expand_aliases
    exec 5<&- 6<&- 8<&-
    builtin printf 'r SERIAL\n' >&9
  }
else
  __ale_save() {
    (
      ( if \command read -r __ale_n <&6; then
          set +e
          __ale_traps
          __ale_save
          \command printf 'r %s\n' "$__ale_n" >&9
          while IFS= \command read -r __ale_g <&8; do \command eval "$__ale_g"; done
        fi ) </dev/null &
      \command printf 'k %s %s\n' "$__ale_n" "$!" >&9
    ) >/dev/null 2>&1
  }
  __ale_traps() {
    __ale_u=0
    trap 'case $__ale_u in 1) exit 124; esac' PWR
    trap '__ale_save || :' EXIT
  }
  __ale_traps
  __ale_n=SERIAL
  exec 5<&-
  __ale_save
  \command printf 'r SERIAL\n' >&9
fi
"""


def setup(serial: int) -> bytes:
    """What a new shell reads first."""
    return SETUP.replace(b"SERIAL", b"%d" % serial)


def command(serial: int, last: int, folder: bytes, text: bytes) -> bytes:
    """What it reads before a command; `last` is the exit code of the one before."""
    return b"__ale_n=%d __ale_s=%d\n__ale_d=%s\n__ale_c=%s\n" % (serial, last, quoted(folder), quoted(text))


def quoted(text: bytes) -> bytes:
    """A word that stands for just these bytes."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
