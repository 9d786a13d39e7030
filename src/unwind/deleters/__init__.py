"""One object: the chain, the built-in deleters, the guarded DELETE, proof of absence, retry."""
