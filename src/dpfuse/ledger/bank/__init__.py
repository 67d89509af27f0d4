"""Trusted: lends every sensor's budget in slices to several centres, so that nothing is shared while a step is made."""

from dpfuse.ledger.bank.book import Book
from dpfuse.ledger.bank.borrower import BankAnswer, Borrower, HeldSlice
from dpfuse.ledger.bank.rules import BankTerms, LastAnswer, Loan, Submission, slice_of

__all__ = ["BankAnswer", "BankTerms", "Book", "Borrower", "HeldSlice", "LastAnswer", "Loan", "Submission", "slice_of"]
