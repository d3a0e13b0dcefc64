"""What the examples with a container share: a model to ask, and a bar for files on their way."""
