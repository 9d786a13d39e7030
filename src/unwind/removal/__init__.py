"""The objects of one step: order, foreign content, owned objects, volumes, releases."""
