"""`python -m fedjax_pfl`: an overview of the package or, with arguments, a command."""

import sys
import textwrap

import fedjax_pfl as fp
from fedjax_pfl import command

__all__ = ["main"]

_PAGE = """
fedjax_pfl {version}
{about}

Commands, whose options `fedjax-pfl COMMAND --help` lists:

{commands}

A first program:

    import jax
    import fedjax_pfl as fp

    result = fp.simulate(
        jax.random.key(0),
        fp.FederatedProcess(algorithm=fp.Flame()),
        fp.LogisticRegression(),
        fp.load_federation("digits", num_clients=10),
        num_rounds=20,
    )
    print(result)

help(fp.Flame) documents one part in Python; README.md and docs/ of the
repository document all of them.
"""


def main() -> None:
    """Prints a page: the commands, a first program, and where to read on."""
    column = 1 + max(map(len, command.COMMANDS))
    lines = [
        textwrap.fill(
            command.sentence(name),
            width=80,
            initial_indent=f"  {name:{column}}",
            subsequent_indent=" " * (2 + column),
        )
        for name in command.COMMANDS
    ]
    page = {
        "version": fp.__version__,
        "about": fp.__doc__,
        "commands": "\n".join(lines),
    }
    print(_PAGE.format(**page).strip())
    if missing := command.lacking():
        print(missing, file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    if sys.argv[1:]:
        command.main()
    else:
        main()
