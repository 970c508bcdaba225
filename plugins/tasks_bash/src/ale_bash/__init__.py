"""Shell tasks: parametric families with demonstrators, and 20 graded hand-written ones."""
