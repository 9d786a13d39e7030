"""Azure Resource Manager behind the kinds of Azure Service Operator."""
