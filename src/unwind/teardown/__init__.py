"""One target: step sources and removers, plan, record, gate rule, runners, status, release."""
