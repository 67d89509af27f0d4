"""What dpfuse raises and a program may want to catch; callers' slips are ValueError and TypeError."""


class DpfuseError(Exception):
    """The root of dpfuse's own errors."""


class BudgetExceeded(DpfuseError):
    """A release would cost more than the budget left; nothing was spent and a smaller one may follow."""


class TrainingDiverged(DpfuseError):
    """A loss or a gradient stopped being finite."""


class FileRefused(DpfuseError):
    """A file is not what its name says: wrong kind, version, shape or content."""


class DatasetMissing(DpfuseError):
    """Published data that a command or test needs are not where it looked."""


class MissingExtra(DpfuseError):
    """A part of dpfuse needs a package that a plain install leaves out."""


class LedgerRefused(DpfuseError):
    """A ledger is missing, locked, damaged, changed, rolled back or cannot be written; nothing may be released."""


class ReleaseRefused(DpfuseError):
    """What was received is no release, not one of this design, or does not follow from those before it."""
