"""Why is it still there, or why may it not be deleted? What has to be read for that; `diagnosing` judges it."""
