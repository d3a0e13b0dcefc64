"""Small tasks with checked answers, for any model: what they are, and when they are done."""
