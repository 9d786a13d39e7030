"""From what depends on what to a plan: waves, cycles by name, what may go now, how much goes. Pure."""
