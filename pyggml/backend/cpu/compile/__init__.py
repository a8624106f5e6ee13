"""From an allocated graph to tables of addresses: launches, phases, work memory."""
