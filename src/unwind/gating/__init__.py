"""May the parent go? The rules of Cluster API's hooks and how they are answered."""
