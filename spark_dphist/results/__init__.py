"""Using what was published: totals, changes between releases; post-processing of public numbers."""
