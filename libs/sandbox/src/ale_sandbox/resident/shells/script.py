"""The script that a persistent shell runs, for bash and for any POSIX shell. Runs in the resident, inside the sandbox.

1. The shell reads lines from its stdin, a pipe: `START` once, then a `GO` for each command. The command's text, and all
   that changes between commands, is in a file in memory (descriptor 7), which is read in large pieces.
2. A command runs in the shell itself, with empty stdin, its own named pipes as stdout and stderr, and without the
   shell's own descriptors. Then the shell reports the command's end on descriptor 9 (`d`), saves its state and reports
   that (`s`).
3. The state is for the next shell, if a command ends this one. Bash writes it to a file beside the named pipes. Other
   shells cannot print their functions, so they keep a waiting copy of themselves, which takes over when it reads a line
   from descriptor 6.
4. The signal PWR means that time is up; if it comes late, it is ignored. Bash leaves the command by a `break`, which
   keeps its table of jobs, or by `exit` in a function, where `break` does not work. Others exit, and their copy takes
   over.

The shell parses this text before any command can set aliases; parts that it parses later are quoted.
"""

from __future__ import annotations

START = b"\\command . /proc/self/fd/7\n"
GO = (
    rb'\command . /proc/self/fd/7; { \command eval "$__ale_b"; } 6<&- 7<&- 8<&- 9>&- </dev/null'
    rb' >|"$__ale_d/o" 2>|"$__ale_d/e"'
    b';\\command eval "$__ale_f"\n'
)
"""The redirections are outside `eval`, so that they last until a command that ends the shell has written its end."""

SETUP = (
    rb"""
__ale_r() { return "$1"; }
__ale_o=0 __ale_u=0
__ale_b='__ale_o=$__ale_n __ale_u=1; for __ale_i in .; do if __ale_r "$__ale_s"; then """
    rb"""\command eval "$__ale_c"; else \command eval "$__ale_c"; fi; done'
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
)


def setup(serial: int) -> bytes:
    """Return what a new shell reads first."""
    return SETUP.replace(b"SERIAL", b"%d" % serial)


def command(serial: int, last: int, folder: bytes, text: bytes) -> bytes:
    """Return what the shell reads for a command; `last` is the exit code of the previous one."""
    return b"__ale_n=%d __ale_s=%d\n__ale_d=%s\n__ale_c=%s\n" % (serial, last, quote(folder), quote(text))


def quote(text: bytes) -> bytes:
    """Quote bytes as a shell word."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
