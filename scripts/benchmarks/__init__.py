"""One module a benchmark: ``add_arguments(parser)`` and ``run(args) -> figures``; ``figures["rows"]`` is the table."""
