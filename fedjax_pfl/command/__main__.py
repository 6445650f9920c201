"""`python -m fedjax_pfl.command`, the command line without an installed script."""

from fedjax_pfl import command

if __name__ == "__main__":
    command.main()
