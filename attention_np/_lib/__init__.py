"""What the ops stand on: what makes them robust, never what they compute. Private, and read last."""
