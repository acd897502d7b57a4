"""The one exception that the command line turns into a single line and exit status 2."""


class UsageError(Exception):
    """Bad input from the user. The message names the value, the limit and the remedy, in one line."""
