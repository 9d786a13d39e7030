"""What was put where: entries, sealing, the ledger."""
