"""`unwind dashboard`: teardowns, stuck objects, plans and the ledger as a web page on loopback."""
