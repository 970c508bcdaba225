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

The user's options, traps, functions and aliases neither see this text nor change what it does:

5. Outside the command, stdout and stderr are /dev/null. The command's own are redirections of the `eval` that runs it,
   because a shell traces a command (`set -x`) and runs a DEBUG trap before it opens the command's redirections.
6. After a command bash takes the traps DEBUG and RETURN and the options x, v and a away, and gives them back before
   the next one (`__ale_arm`). The first two commands of that still run a DEBUG trap, with its output dropped: bash has
   no way to take it away without a command. The option t, which would end the shell after the next command, is taken
   away for good. Other shells lose the option a alone.
7. Commands are quoted, so they are no aliases, and are special builtins, which no function can replace; in bash only in
   POSIX mode, so this text switches to it (`POSIXLY_CORRECT`) and back (`__ale_leave`). Only bash has functions that
   hide `builtin`; what needs it then runs in a subshell without that function.
8. Where no command may run, expansions in redirections set variables: `${__ale_z#"$((__ale_o=1))"}` is /dev/null.
"""

from __future__ import annotations

START = b"\\. /proc/self/fd/7\n"
RUN = (
    rb"""if __ale_r "$__ale_s"; then \eval "$__ale_c" REDIRECTIONS; else \eval "$__ale_c" REDIRECTIONS; fi"""
).replace(
    b"REDIRECTIONS",
    rb"""5<&- 6<&- 7<&- 8<&- 9>&- >|"$__ale_d/o" 2>|"$__ale_d/e" """
    rb"""<"${__ale_z#"$((__ale_o=__ale_n))$((__ale_u=1))"}" """,
)
GO = (
    rb"""\. /proc/self/fd/7; case ${__ale_x-} in a) __ale_x= __ale_c="\set -a; $__ale_c";; esac; """
    + RUN
    + b'; \\eval "$__ale_f"\n'
)
GO_BASH = (
    rb"__ale_so=$BASHOPTS __ale_po=$SHELLOPTS; POSIXLY_CORRECT=y \. /proc/self/fd/7; __ale_begin; "
    rb"for __ale_i in .; do " + RUN + b"; done; "
    rb"{ POSIXLY_CORRECT=y \trap -p RETURN DEBUG >|/proc/self/fd/5; \trap - DEBUG RETURN; \set +xvat; } "
    rb"""3<"${__ale_z#"$((__ale_e=$?))$((__ale_u=0))"""
    rb"""${__ale_x:=${-//[!xva]/}}${__ale_so:=$BASHOPTS}${__ale_po:=$SHELLOPTS}"}"; """
    b'\\eval "$__ale_f"\n'
)
"""The redirections belong to `eval`, so that they last until a command that ends the shell has written its end."""

TAKE_OVER = b"__ale_n=%d __ale_g=1; \\return 0\n"
"""What a waiting copy reads to take over; one that reads the end of the pipe instead is not needed any more."""

SETUP = rb"""
__ale_r() { return "$1"; }
__ale_o=0 __ale_u=0 __ale_z=/dev/null
if [ -n "${BASH_VERSION-}" ]; then
  __ale_x= __ale_t= __ale_h=
  __ale_leave() {
    case :$__ale_po: in *:posix:*) return;; esac
    \unset -v POSIXLY_CORRECT
    case :$__ale_so: in *:inherit_errexit:*) ;; *) \builtin shopt -u inherit_errexit; esac
    case :$__ale_so: in *:expand_aliases:*) \builtin shopt -s expand_aliases; esac
    case :$__ale_so: in *:shift_verbose:*) \builtin shopt -s shift_verbose; esac
  }
  __ale_begin() {
    __ale_w=$__ale_t __ale_y=$__ale_x
    case $__ale_h$__ale_t${BASH_XTRACEFD:+$__ale_x}${__ale_x//[!a]/} in
    '')
      __ale_leave
      __ale_so= __ale_po= __ale_x=
      case $__ale_y in ?*) \set -$__ale_y; esac;;
    *)
      case $__ale_h in
      '') __ale_leave; __ale_c='{ __ale_arm; ${__ale_w:+eval "$__ale_w"}; } 2>/dev/null
'$__ale_c;;
      *) __ale_c='{ \eval "$__ale_w"; __ale_arm; } 2>/dev/null
'$__ale_c
      esac
    esac
  }
  __ale_arm() {
    case $__ale_h in ?*) __ale_leave; esac
    __ale_so= __ale_po= __ale_x= __ale_t=
    case $__ale_y in ?*) \set -$__ale_y; esac
  }
  __ale_f='
    __ale_h= __ale_t=
    case $__ale_x in *a*) \export -n __ale_e __ale_u __ale_x __ale_so __ale_po; esac
    for __ale_i in eval set; do
      if \export -f "$__ale_i"; then \export -nf "$__ale_i"; __ale_h=1; fi
    done
    if [[ -s /proc/self/fd/5 ]]; then
      __ale_t=$(</proc/self/fd/5)
      __ale_t=${__ale_t#"trap -- - RETURN"} __ale_t=${__ale_t%"trap -- - DEBUG"}
      if [[ $__ale_t != *trap* ]]; then __ale_t=; fi
    fi
    if \export -f builtin; then
      \export -nf builtin
      __ale_k=$(\unset -f declare; \declare -f builtin)
      (\unset -f builtin; __ale_end)
      __ale_leave
    else
      __ale_k=
      __ale_end
    fi
  '
  __ale_end() {
    \builtin printf 'd %s %s %s\n' "$__ale_n" "$__ale_o" "$__ale_e" >&9
    __ale_leave
    __ale_c=
    __ale_save || :
    \builtin printf 's %s\n' "$__ale_n" >&9
  }
  __ale_save() {
    {
      \builtin printf 'builtin cd -- %q\n' "${PWD-.}"
      \builtin umask -p
      \builtin shopt -p extglob
      \builtin declare -p
      \builtin printf 'shopt -u expand_aliases\n'
      \builtin declare -f
      \builtin printf '%s\n' "$__ale_k"
      \builtin declare -Fx
      \builtin alias -p
      \builtin shopt -p
      \builtin set +o
      \builtin printf 'set +et\n\n#whole\n'
    } >|"$__ale_d/s"
  } 2>/dev/null
  trap 'case $__ale_u${#FUNCNAME[@]} in 0*) ;; 10) break 999;; *) exit 124; esac' PWR
  trap '{ __ale_save || :; } >/dev/null 2>&1' EXIT
  {
    shopt -s expand_aliases
    exec 6<&- 8<&-
    [ -s /proc/self/fd/5 ] && . /proc/self/fd/5
    __ale_x=${__ale_x:-${-//[!xva]/}} __ale_u=0 __ale_so=$BASHOPTS __ale_po=$SHELLOPTS
    POSIXLY_CORRECT=y \set +xva
    (\unset -f builtin; \builtin printf 'r SERIAL 1\n' >&9)
    __ale_leave
  }
else
  __ale_f='
    __ale_e=$?
    case $- in *a*) \set +a; __ale_x=a __ale_i=$__ale_e; \unset __ale_e; __ale_e=$__ale_i;; esac
    __ale_u=0 __ale_c=
    (\unset -f printf; \printf "d %s %s %s\n" "$__ale_n" "$__ale_o" "$__ale_e" >&9)
    __ale_save || :
    (\unset -f printf; \printf "s %s\n" "$__ale_n" >&9)
  '
  __ale_save() {
    (
      (
        __ale_g=
        \. /proc/self/fd/6
        case $__ale_g in '') \exit 0; esac
        \set +e
        __ale_traps
        __ale_save
        (\unset -f printf; \printf 'r %s 0\n' "$__ale_n" >&9)
        \. /proc/self/fd/8
      ) </dev/null &
      \unset -f printf
      \printf 'k %s %s\n' "$__ale_n" "$!" >&9
    ) >/dev/null 2>&1
  }
  __ale_traps() {
    __ale_u=0
    \trap 'case $__ale_u in 1) exit 124; esac' PWR
    \trap '__ale_save || :' EXIT
  }
  __ale_traps
  __ale_n=SERIAL
  exec 5<&-
  __ale_save
  printf 'r SERIAL 0\n' >&9
fi
"""


def setup(serial: int) -> bytes:
    """Return what a new shell reads first."""
    return SETUP.replace(b"SERIAL", b"%d" % serial)


def command(serial: int, last: int, folder: bytes, text: bytes) -> bytes:
    """Return what the shell reads for a command; `last` is the exit code of the previous one."""
    return b"__ale_n=%d __ale_s=%d\n__ale_d=%s\n__ale_c=%s\n" % (serial, last, quote(folder), quote(text))


def quote(text: bytes) -> bytes:
    """Quote bytes as a shell word."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
