"""Export of a store to one file, and import of such a file into a store of any kind.

`archive` is the format of the file, `tables` what of the database is in it, `port` what a database provides for it.
"""

from __future__ import annotations

from antwort.storage.transfer.archive import DamagedExport, ExportReader, TransferError, verify
from antwort.storage.transfer.exporting import export_store
from antwort.storage.transfer.importing import import_store
from antwort.storage.transfer.port import RowProgress, TransferDatabase

__all__ = [
    "DamagedExport",
    "ExportReader",
    "RowProgress",
    "TransferDatabase",
    "TransferError",
    "export_store",
    "import_store",
    "verify",
]
