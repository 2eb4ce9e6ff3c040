"""Errors, grouped by what the user does next.

Every message says what is wrong, where (file, row, position), what was found against what was
expected, and ends with the next command or change. ``ValueError`` stays for misuse of the Python
API, ``assert`` for invariants of our own.
"""


class DflashCacheError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class ConfigError(DflashCacheError):
    """A flag, a configuration file or a combination of settings is wrong: change it."""

    exit_code = 2


class DataError(DflashCacheError):
    """The dataset or a model's files hold something that cannot be used: mend the data."""


class CacheMismatchError(DflashCacheError):
    """Two things that were made for different settings were put together: choose the right pair."""


class CacheIncompleteError(DflashCacheError):
    """The cache is not finished: run the same ``extract`` again to resume it."""


class CacheCorruptError(DflashCacheError):
    """Bytes on disk are not those that were written: see the named file."""


class CacheAwayError(CacheCorruptError):
    """States are linked to a file that is not there: mount its disk, or bring its cache back."""


class CacheBusyError(DflashCacheError):
    """Another live process is writing this cache: wait for it, or use another folder."""


class TrainingError(DflashCacheError):
    """Training reached a state that it cannot go on from, such as a loss that is not finite."""


class RankError(DflashCacheError):
    """Another process of the same training stopped or was lost: see its message, start again."""


class WorkerLostError(DflashCacheError):
    """A worker process was ended from outside: see the system's log, use fewer workers."""


class ServerError(DflashCacheError):
    """A server of the target does not answer: start it, and give the same command again."""


class RefusedError(DflashCacheError):
    """The target, or its server, does not take a request: mend the row, or leave it out."""
