"""The deleter chain: how one object is deleted, and how plugins take part."""
