"""Errors that a program may catch; a wrong argument is a ValueError or TypeError."""


class DpfuseError(Exception):
    """The base class of all errors of dpfuse."""


class BudgetExceeded(DpfuseError):
    """A release would cost more than the budget left. Nothing was spent, and a smaller release may follow."""


class TrainingDiverged(DpfuseError):
    """A loss or a gradient is no longer finite."""


class FileRefused(DpfuseError):
    """A file has the wrong kind, version, shape or content."""


class DatasetMissing(DpfuseError):
    """A command or test needs published data and did not find them."""


class MissingExtra(DpfuseError):
    """A package is missing that only an extra of dpfuse installs."""


class LedgerRefused(DpfuseError):
    """A ledger is missing, locked, damaged, changed, rolled back or not writable. Nothing may be released."""


class ReleaseRefused(DpfuseError):
    """A received message is not a release of this design, or does not follow from the releases before it."""
