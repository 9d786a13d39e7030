"""Inventories: which objects were deployed on which cluster, sealing, and the ledger of objects left behind."""
