"""What it takes to measure the cases: racks, aggregators, processes."""
