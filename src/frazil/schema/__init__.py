"""Types, columns, rows, messages and changes: what a record may be."""
