"""Building blocks of the graphs of architectures: builder, feed-forward part, activations."""
