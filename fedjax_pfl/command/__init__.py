"""The command line `fedjax-pfl`."""
