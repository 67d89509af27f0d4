"""Errors that a program may catch; a wrong argument is a ValueError or TypeError."""


class DpfuseError(Exception):
    """The base class of all errors of dpfuse."""


class BudgetExceeded(DpfuseError):
    """A release would cost more than the budget left. Nothing was spent, and a smaller release may follow."""


class TrainingDiverged(DpfuseError):
    """A loss or a gradient is no longer finite."""


class TrainingWarning(UserWarning):
    """A design was trained that hardly estimates better than the prior."""


class DataWarning(UserWarning):
    """A recording has reports that a design does not read."""


class FileRefused(DpfuseError):
    """A file has the wrong kind, version, shape or content."""


class DatasetMissing(DpfuseError):
    """A command or test needs published data and did not find them."""


class MissingExtra(DpfuseError):
    """A package is missing that only an extra of dpfuse installs."""


class LedgerRefused(DpfuseError):
    """A ledger or bank is damaged, changed, rolled back or lost. Nothing may be released, now or by trying again."""


class LedgerUnavailable(LedgerRefused):
    """A ledger, bank or witness cannot be used now: a full disk, another program that has it, or a server that is away.

    Nothing may be released now. The same call may work later.
    """


class LedgerMismatch(LedgerRefused):
    """A ledger or bank is in order, and not the one for this design, path, user or version; settings must change."""


class ReleaseRefused(DpfuseError):
    """A received message is not a release of this design, or does not follow from the releases before it."""


class DesignChanged(ReleaseRefused):
    """A release was made by another design than the estimator's: the centre's ledger was upgraded."""


class PastChanged(ReleaseRefused):
    """A centre shows another past than it did before: its ledger was rewritten, rolled back or replaced."""
