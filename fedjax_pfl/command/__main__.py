"""`python -m fedjax_pfl.command`, the command line where no script is installed."""

from fedjax_pfl import command

if __name__ == "__main__":
    command.main()
