"""The parts that the demo pages share."""
