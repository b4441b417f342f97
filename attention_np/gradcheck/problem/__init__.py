"""What can be asked: two functions as people write them, seen as one function of arrays, and its claimed gradients."""
