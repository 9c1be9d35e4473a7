"""What each step of coderl does, as plain functions by subject; flows/ wraps them as Prefect tasks."""

import warnings

# Python 3.12 and later report odd escapes in the programs of data sets, which coderl only parses.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
