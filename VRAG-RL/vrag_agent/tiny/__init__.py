"""A world small enough to learn in minutes on two cores: pages, a model of a million weights, a demonstrator."""
