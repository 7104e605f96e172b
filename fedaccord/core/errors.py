"""One family of errors. The text says what was wrong, where, and what to do; the command line prints just that."""


class FedAccordError(Exception):
    """An error that the user can act on. The command line exits with 2."""


class SettingsError(FedAccordError):
    """A wrong key, value or combination of settings."""


class DataError(FedAccordError):
    """A data file that is missing, damaged or not what it claims to be."""


class TaskError(FedAccordError):
    """A user's model, loss or metric that fails while it runs."""


class SplitError(FedAccordError):
    """A way of dividing the data that this data does not allow."""


class RunError(FedAccordError):
    """A run folder that cannot be created, read or resumed."""


class UpdateRefused(FedAccordError):
    """A client's update that the server does not accept."""


class Diverged(UpdateRefused):
    """An update whose client's training blew up: a value is not finite, or is absurdly large."""


class MatchingError(FedAccordError):
    """A model whose layers of interest cannot be found or matched."""


class MethodError(FedAccordError):
    """A method that sends or keeps what it did not declare, or reads a hyper-parameter that the run does not have."""


class EngineError(FedAccordError):
    """Clients that could not be run: a worker that keeps dying, a cluster that cannot be reached."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, which in other people's code may have many lines or none."""
    return next(iter(str(error).strip().splitlines()), "")


def in_short(error: BaseException, most: int = 400) -> str:
    """Return an error's type and all of its message on one line; of a long one, the beginning and the end."""
    said = " ".join(str(error).split())
    if len(said) > most:
        said = f"{said[: most // 2]} ... {said[-most // 2 :]}"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class FedAccordWarning(UserWarning):
    """A warning of something that a person should know although the run went on."""
