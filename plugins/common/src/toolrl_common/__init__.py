"""What several plugins of toolrl share, each in a module of its own."""
