"""What is published under a name, as data: the ledger, every change of it as a pure function, the
module tree and its journal.

In: a ledger and a verb. Out: the next ledger, visible by one rename.
"""
