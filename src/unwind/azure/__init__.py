"""What stands behind objects of Azure Service Operator's kinds: Azure Resource Manager, for deletion only."""
