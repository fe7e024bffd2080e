"""Entry point of the robust-interp command. The help is printed without importing torch."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn

from robust_interp import __version__
from robust_interp.cli import (
    audit,
    bench,
    completion,
    data,
    leaderboard,
    ls,
    models,
    plot,
    report,
    robustbench,
    stability,
    store,
    sweep,
    train,
    verify,
)
from robust_interp.cli.options import load_plugins
from robust_interp.cli.terminal import warn
from robust_interp.core import threads
from robust_interp.core.errors import IgnoredWarning, Stopped, UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.texts import first_line_of, one_line
from robust_interp.core.torch_internals import dead_worker

EXIT_STATUS = """\
exit status:
  0    success
  1    an error that the message explains, such as an unknown name; or a broken
       model was left out, and all else is done
  2    wrong usage, such as an unknown option
  3    audit: a check failed
  130  stopped by Ctrl-C (143: by a termination signal, 129: by a closed
       terminal); finished work is saved"""


# A signal to all processes of a command ends workers, too, of which torch is told by another signal.
CHILD_ENDED = getattr(signal, "SIGCHLD", None)
SIGNALS_APART = 0.3  # seconds between the two, at most, whichever is first


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status, one of EXIT_STATUS; bad usage ends the process itself.
    """
    # timm 1.0.9 uses parts of torch.jit that newer torch deprecates; users cannot act on the warning.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
    # More processes than CPUs were asked for, with --decode-workers.
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # λ and ± must not raise on a terminal that lacks them
            stream.reconfigure(errors="replace")
    threads.wait_passively()  # must be set before torch is loaded
    commands = parser()
    if "_ARGCOMPLETE" in os.environ:
        completion.answer(commands)
    argv = leaderboard.with_default_action(sys.argv[1:] if argv is None else argv)
    arguments = argparse.Namespace()
    try:
        arguments = parsed(commands, argv)
        with _ignored_in_lines(), _stopped_by_signals():
            load_plugins(arguments)
            status = arguments.run(arguments)
            if sys.stdout is not None:  # it is None where the shell has closed it
                sys.stdout.flush()  # raise write errors here, where they are handled
            return status
    except (Exception, KeyboardInterrupt) as error:
        handled = _status_after(error, arguments)
        if handled is None:
            raise
        return handled


def _status_after(error: BaseException, arguments: argparse.Namespace) -> int | None:
    """Report what ended a command in one line.

    Args:
        error: What ended it.
        arguments: Its arguments; empty if they could not be parsed.

    Returns:
        The exit status; None for an error of the program, which is shown with its traceback.
    """
    if isinstance(error, KeyboardInterrupt):
        warn("\nrobust-interp: stopped; finished work is saved, run the same command to continue")
        return 128 + getattr(error, "signum", signal.SIGINT)
    if isinstance(error, BrokenPipeError):  # the reader of the pipe was closed, as with | head
        _discard_output()
        return 0
    line = _explained(error, arguments)
    if line is not None:
        warn(f"robust-interp: {line}")
        return 1
    return None


def _explained(error: BaseException, arguments: argparse.Namespace) -> str | None:
    """Return the line for an error that the user can do something about; None for any other."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RuntimeError | MemoryError) and is_out_of_memory(error):
        remedies = [("batch_size", "a smaller --batch-size"), ("at_once", "--at-once 1")]
        remedies += [("device", "another --device")]
        tries = " or ".join(text for name, text in remedies if hasattr(arguments, name))
        hint = f": try {tries}" if tries else ""
        return f"out of memory ({first_line_of(error)}); finished work is saved{hint}"
    if ended := dead_worker(error):
        return f"{ended}; finished work is saved"
    if isinstance(error, OSError) and (refused := _refused_by_system(error)):
        return f"cannot {refused}: {error.strerror}; finished work is saved"
    return None


def _refused_by_system(error: OSError) -> str:
    """Return what the system did not allow; '' for an error that needs its traceback."""
    if error.filename is not None and isinstance(error, PermissionError):  # as of another user's folder
        return f"use {error.filename}"
    if error.filename is None and not _can_print():  # as with > /dev/full
        _discard_output()
        return "write to standard output"
    return ""


def _can_print() -> bool:
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, unless they are ignored, as under nohup."""
    before: dict[int, Any] = {}
    caught: list[int] = []

    def stop(signum: int, _: FrameType | None) -> None:
        caught.append(signum)
        if CHILD_ENDED and callable(signal.getsignal(CHILD_ENDED)):
            signal.signal(CHILD_ENDED, lambda *_: None)  # torch's would raise errors from now on, anywhere
        raise Stopped(signum)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            signum = getattr(signal, name, None)
            if signum is not None and signal.getsignal(signum) is signal.SIG_DFL:
                before[signum] = signal.signal(signum, stop)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if caught and not isinstance(interrupt, Stopped):  # Ray replaces the exception of a handler
            raise Stopped(caught[0]) from interrupt
        raise
    except Exception as error:
        if not any(map(dead_worker, _causes(error))):
            raise
        if not caught:
            time.sleep(SIGNALS_APART)  # a late signal raises Stopped
            raise
        raise Stopped(caught[0]) from error
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _ignored_in_lines() -> Iterator[None]:
    """Print each distinct IgnoredWarning once, as one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", IgnoredWarning)
        plain, told = warnings.showwarning, set()

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, IgnoredWarning):
                plain(message, category, *where, **more)
            elif str(message) not in told:
                told.add(str(message))
                warn(f"warning: {message}")

        warnings.showwarning = show
        yield


class _Parser(argparse.ArgumentParser):
    _given: Sequence[str] = ()  # the arguments that are parsed

    def error(self, message: str) -> NoReturn:
        """Report bad usage in one line; argparse would print the whole usage first."""
        if "--models" in message and "not allowed with argument" in message:  # names without it: old spelling
            stray = self._stray()
            told = f"unrecognized arguments: {stray[0]}{self._one_value(stray[1])}" if stray else ""
            message = told or "name all models with --models"
        if message == "one of the arguments --models is required":  # the other is its old spelling
            message = "the following arguments are required: --models"
        self.exit(2, f"{one_line(f'{self.prog}: {message}')}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the choice that was probably meant; argparse would list all of them."""
        from robust_interp.core.registry import nearest

        known = [str(choice) for choice in action.choices or ()]
        if value not in known and (near := nearest(str(value), known)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; did you mean {near}?")
        super()._check_value(action, value)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Report unknown arguments here, where the command is known; argparse would report them later.

        Unknown options come first: argparse may take the value of one for a name, and refuse that instead.
        """
        self._given = tuple(args or ())
        if "_ARGCOMPLETE" not in os.environ:  # a completion needs the options, whatever is mistyped
            self._refuse(self._unknown_options())
        found, unknown = super().parse_known_args(args, namespace)
        self._refuse(unknown)
        return found, unknown

    @property
    def _actions_of_group(self) -> dict[str, argparse.ArgumentParser]:
        """The parsers of the actions by name, such as ``landscape`` of ``plot``; empty for a command."""
        found = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return {name: parser for action in found for name, parser in action.choices.items()}

    def _unknown_options(self) -> list[str]:
        """Return the long options that this parser does not know, of those before the name of an action."""
        actions = self._actions_of_group
        if actions and self._given and not self._given[0].startswith("-") and self._given[0] not in actions:
            return []  # a mistyped action, which is refused instead
        ends = {"--", *actions}
        own = takewhile(lambda argument: argument not in ends, self._given)
        asked = (argument.partition("=")[0] for argument in own if argument.startswith("--"))
        known = self._option_string_actions
        return [name for name in asked if not any(option.startswith(name) for option in known)]

    def _refuse(self, unknown: list[str]) -> None:
        if unknown:
            told = " ".join(argument or "''" for argument in unknown)
            self.error(f"unrecognized arguments: {told}{self._hint(unknown[0])}")

    def _hint(self, unknown: str) -> str:
        """Return what is probably wrong with an unknown argument; empty if nothing is known."""
        from robust_interp.core.registry import similar

        later = dict.fromkeys(
            option for one in self._actions_of_group.values() for option in one._option_string_actions
        )
        long = [option[2:] for option in (*self._option_string_actions, *later) if option.startswith("--")]
        if unknown in later:
            return f"; it belongs after one of {', '.join(self._actions_of_group)}"
        if unknown.startswith("--"):
            near = similar(unknown[2:], long)
            return f"; did you mean --{near[0]}?" if near else ""
        if stray := self._stray():
            return self._one_value(stray[1])
        if unknown and not unknown.startswith("-") and "models" in long:
            return f"; did you mean --models {unknown}?"
        return ""

    def _stray(self) -> tuple[str, str] | None:
        """Return the first word after the value of an option, and that option; None if there is none."""
        option, room = "", 0
        for argument in self._given:
            if argument == "--":
                break
            if argument.startswith("-") and not argument[1:2].isdigit() and argument != "-":
                option, has_value, _ = argument.partition("=")
                takes = self._values_of(option)
                option, room = option if takes else "", 0 if has_value else takes
            elif room:
                room -= 1
            elif option:
                return argument, option
        return None

    def _values_of(self, option: str) -> int:
        """Return how many words an option takes, which may be abbreviated; 0 for an unknown one."""
        if not (meant := self._meant(option)):
            return 0
        nargs = meant.nargs
        return nargs if isinstance(nargs, int) else 1 if nargs in (None, "?") else sys.maxsize

    def _meant(self, option: str) -> argparse.Action | None:
        known = self._option_string_actions
        return known.get(option) or next((known[name] for name in known if name.startswith(option)), None)

    def _one_value(self, option: str) -> str:
        """Return what to do about a word after the value of an option."""
        meant = self._meant(option)
        shown = meant.metavar if meant and isinstance(meant.metavar, str) else ""
        is_list = shown.endswith(("S", "LIST")) or "," in shown
        return f"; {option} takes one value{': a list has commas, without spaces' if is_list else ''}"


def parsed(commands: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse the arguments; values from a --config file replace the defaults."""
    arguments = commands.parse_args(argv)
    if file := getattr(arguments, "config", None):
        from robust_interp.benchmark import config

        arguments.configured.set_defaults(**config.read(file))
        arguments = commands.parse_args(argv)
    return arguments


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands and their options."""
    found = _Parser(
        prog="robust-interp",
        description="Measure the accuracy of image classifiers on clean images, under\ncorruptions and under "
        "attacks.",
        epilog=f"example: robust-interp bench\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"robust-interp {__version__}")
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        bench,
        audit,
        verify,
        leaderboard,
        plot,
        stability,
        report,
        train,
        sweep,
        models,
        data,
        ls,
        store,
        robustbench,
    ):
        command.add_to(commands)
    return found


if __name__ == "__main__":
    sys.exit(main())
