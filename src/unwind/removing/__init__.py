"""The removal engine: what one step put on a member goes, in the right order, and is seen to be absent."""
