"""Vector IR of recurrent ops: rows of states, convolutions over time."""
