"""The label that protects objects from deletion: rules, kinds, policies, webhook, controller."""
