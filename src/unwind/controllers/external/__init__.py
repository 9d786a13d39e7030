"""Resources that stand for something outside the cluster: that goes before they do."""
