"""What a server raises where it cannot start or serve: each message says what was wrong and what to do."""


class ServerError(Exception):
    """Base of these errors; by itself a fault of the machine or of a process, where trying again may help."""


class SetupError(ServerError):
    """Arguments, a model or a machine with which the server cannot work: trying again cannot help."""
