"""Deletes Azure resources of Azure Service Operator's kinds through Azure Resource Manager."""
